// The logits of the real models against libllama's, both fed the same real text.
#include <gtest/gtest.h>

#include <array>
#include <iostream>
#include <vector>

#include "support/dequantised_copy.h"
#include "support/model_files.h"
#include "support/oracle.h"
#include "support/temporary_file.h"

namespace karez::test {
namespace {

struct Tolerance {
  double max_difference;
  double mean_difference;
  double min_top1_share;
  // Where the reference's two best are closer than this, either may win.
  float margin;
};
// Keys and values are f32 on both sides, so only the order of sums and the last bits of exp()
// differ. With f32 weights that is all there is: 1e-4 of logits of size 10 to 30. Gemma's GELU goes
// through ggml's table of 16-bit floats, which turns last bits into steps.
constexpr Tolerance kF32Weights = {2e-3, 1e-4, 0.998, 2e-3F};
constexpr Tolerance kF32WeightsGelu = {0.25, 0.02, 0.99, 0.05F};
// With the file's quantised weights, activations are rounded to 8 bits before each product. A last
// bit then decides now and then between two 8-bit values, and after 18 to 30 layers all roundings
// are others. libllama differs from itself by as much when its weights are laid out in another way
// (repacking on and off): by 2.0 at most and 0.20 on average, 95 % the same top-1. Where the two
// best change places they were 0.8 apart at most, on a processor with AVX2 only.
constexpr Tolerance kQuantisedWeights = {6.0, 0.35, 0.93, 1.0F};

void expect_close(const Agreement& agreement, const Tolerance& tolerance, std::int64_t min_rows) {
  std::cout << "  " << agreement.to_string() << std::endl;
  EXPECT_GE(agreement.rows(), min_rows);
  EXPECT_LE(agreement.max_difference(), tolerance.max_difference);
  EXPECT_LE(agreement.mean_difference(), tolerance.mean_difference);
  EXPECT_GE(agreement.top1_share(), tolerance.min_top1_share);
  EXPECT_LE(agreement.max_disagreeing_margin(), tolerance.margin);
}

constexpr int kComparedTokens = 512;
constexpr int kSingleRows = 96;  // decoded one by one; the others in slices

class OracleLogits : public testing::TestWithParam<const char*> {};

void compare_one_sequence(const char* name, int prompt_tokens) {
  const std::string path = model_path(name);
  const int num_tokens = prompt_tokens + kComparedTokens;
  const std::vector<TokenId> text = real_text(path, num_tokens);
  const auto ours = paged_model(path, {.max_tokens = num_tokens});
  const auto reference = llama_model(path, {.max_tokens = num_tokens});
  const Schedule schedule = single_sequence_schedule(text, prompt_tokens, kSingleRows);
  expect_close(compare(*ours, *reference, schedule), kQuantisedWeights, kComparedTokens);
}

TEST_P(OracleLogits, AgreeAfterAPromptOf5Tokens) { compare_one_sequence(GetParam(), 5); }
TEST_P(OracleLogits, AgreeAfterAPromptOf500Tokens) { compare_one_sequence(GetParam(), 500); }
TEST_P(OracleLogits, AgreeAfterAPromptOf3000Tokens) { compare_one_sequence(GetParam(), 3000); }

TEST_P(OracleLogits, AgreeForEightSequencesMixedInEachForward) {
  const std::string path = model_path(GetParam());
  constexpr std::array<int, 8> kPrompts = {5, 500, 3000, 17, 64, 250, 1000, 640};
  constexpr int kContinuation = 64;
  const std::vector<TokenId> text = real_text(path, 6000);
  std::vector<std::vector<TokenId>> texts;
  for (std::size_t s = 0; s < kPrompts.size(); ++s) {
    // Different text for each, so that a row that reads another sequence's blocks shows.
    const auto begin = text.begin() + static_cast<std::ptrdiff_t>(s * 300);
    texts.emplace_back(begin, begin + kPrompts[s] + kContinuation);
  }
  const LlamaModelOptions llama_options{.max_tokens = 3072, .num_sequences = 8};
  const auto ours = paged_model(path, {.max_tokens = 3072, .num_sequences = 8});
  const auto reference = llama_model(path, llama_options);
  const Schedule schedule = mixed_schedule(texts, kPrompts);
  expect_close(compare(*ours, *reference, schedule), kQuantisedWeights, 512);
}

TEST_P(OracleLogits, AgreeToTheLastBitsWithF32Weights) {
  const Tolerance& tolerance = GetParam() == kGemma3 ? kF32WeightsGelu : kF32Weights;
  const TemporaryFile file("f32.gguf");
  write_dequantised_copy(model_path(GetParam()), file.path());
  constexpr std::array<int, 4> kPrompts = {5, 500, 17, 640};
  constexpr int kContinuation = 32;
  const std::vector<TokenId> text = real_text(file.path(), 1200);
  {
    const auto ours = paged_model(file.path(), {.max_tokens = 1024});
    const auto reference = llama_model(file.path(), {.max_tokens = 1024});
    const Schedule schedule =
        single_sequence_schedule(std::span(text).first(500 + 128), 500, kContinuation);
    expect_close(compare(*ours, *reference, schedule), tolerance, 128);
  }
  std::vector<std::vector<TokenId>> texts;
  for (std::size_t s = 0; s < kPrompts.size(); ++s) {
    const auto begin = text.begin() + static_cast<std::ptrdiff_t>(s * 150);
    texts.emplace_back(begin, begin + kPrompts[s] + kContinuation);
  }
  const LlamaModelOptions llama_options{.max_tokens = 768, .num_sequences = 4};
  const auto ours = paged_model(file.path(), {.max_tokens = 768, .num_sequences = 4});
  const auto reference = llama_model(file.path(), llama_options);
  expect_close(compare(*ours, *reference, mixed_schedule(texts, kPrompts)), tolerance, 128);
}

// What a narrower KV type costs, beside what libllama's own types cost. All against libllama's f32.
TEST_P(OracleLogits, NarrowKvTypesCostLittleMoreThanThoseOfTheReference) {
  const std::string path = model_path(GetParam());
  constexpr int kPromptTokens = 1000;
  constexpr int kTokens = 256;
  const std::vector<TokenId> text = real_text(path, kPromptTokens + kTokens);
  const Schedule schedule = single_sequence_schedule(text, kPromptTokens, 0);

  const auto reference = llama_model(path, {.max_tokens = 1280});
  const auto f16 =
      llama_model(path, {.cache_type_k = "f16", .cache_type_v = "f16", .max_tokens = 1280});
  const auto q8_0_keys =
      llama_model(path, {.cache_type_k = "q8_0", .cache_type_v = "f16", .max_tokens = 1280});
  const auto our_bf16 = paged_model(path, {.kv_type = KvType::kBf16, .max_tokens = 1280});
  const auto our_q8_0 = paged_model(path, {.kv_type = KvType::kQ8_0, .max_tokens = 1280});
  Agreement f16_cost;
  Agreement q8_0_keys_cost;
  Agreement bf16_cost;
  Agreement q8_0_cost;
  for (const std::vector<Chunk>& chunks : schedule) {
    const std::span<const float> exact = reference->forward(chunks);
    f16_cost.add(f16->forward(chunks), exact, reference->vocab_size());
    q8_0_keys_cost.add(q8_0_keys->forward(chunks), exact, reference->vocab_size());
    bf16_cost.add(our_bf16->forward(chunks), exact, reference->vocab_size());
    q8_0_cost.add(our_q8_0->forward(chunks), exact, reference->vocab_size());
  }
  std::cout << "  libllama f16        " << f16_cost.to_string() << "\n  libllama q8_0 keys  "
            << q8_0_keys_cost.to_string() << "\n  karez bf16          " << bf16_cost.to_string()
            << "\n  karez q8_0          " << q8_0_cost.to_string() << std::endl;
  constexpr double kMaxTimesReference = 1.5;
  EXPECT_LE(bf16_cost.mean_difference(), kMaxTimesReference * f16_cost.mean_difference());
  EXPECT_LE(q8_0_cost.mean_difference(), kMaxTimesReference * q8_0_keys_cost.mean_difference());
  // Measured: 1.0 times. libllama's own share is 93 to 94 % here: activations of quantised weights
  // round differently as soon as anything before them does. The standard error of the difference of
  // two shares of 257 rows is 2.1 %: three of them.
  constexpr double kTop1Slack = 0.065;
  EXPECT_GE(bf16_cost.top1_share(), f16_cost.top1_share() - kTop1Slack);
  EXPECT_GE(q8_0_cost.top1_share(), q8_0_keys_cost.top1_share() - kTop1Slack);
}

INSTANTIATE_TEST_SUITE_P(Models, OracleLogits, testing::Values(kSmolLm2, kGemma3),
                         [](const auto& test) {
                           return test.param == kSmolLm2 ? "SmolLM2" : "Gemma3";
                         });

}  // namespace
}  // namespace karez::test
