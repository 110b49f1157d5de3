// The logits of the real models against libllama's, both fed the same real text.
#include <gtest/gtest.h>

#include <array>
#include <iostream>
#include <vector>

#include "support/model_files.h"
#include "support/oracle.h"

namespace karez::test {
namespace {

// With f32 keys and values on both sides only the order of sums and the last bits of exp() differ.
// Both engines then round activations to 8 bits before each product with quantised weights, and a
// last bit decides now and then between two 8-bit values, which moves logits (of size 10 to 30) by
// this much. A wrong position, mask, scale or norm moves them by whole units.
struct Tolerance {
  double max_difference;
  double mean_difference;
  double min_top1_share;
  // Where the reference's two best are closer than this, either may win.
  float margin;
};
constexpr Tolerance kF32Tolerance = {1.0, 0.05, 0.98, 0.25F};

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
  expect_close(compare(*ours, *reference, schedule), kF32Tolerance, kComparedTokens);
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
  expect_close(compare(*ours, *reference, schedule), kF32Tolerance, 512);
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
  constexpr double kMaxTimesReference = 4;
  EXPECT_LE(bf16_cost.mean_difference(), kMaxTimesReference * f16_cost.mean_difference());
  EXPECT_LE(q8_0_cost.mean_difference(), kMaxTimesReference * q8_0_keys_cost.mean_difference());
  constexpr double kMinTop1Share = 0.95;
  EXPECT_GE(bf16_cost.top1_share(), kMinTop1Share);
  EXPECT_GE(q8_0_cost.top1_share(), kMinTop1Share);
}

INSTANTIATE_TEST_SUITE_P(Models, OracleLogits, testing::Values(kSmolLm2, kGemma3),
                         [](const auto& test) {
                           return test.param == kSmolLm2 ? "SmolLM2" : "Gemma3";
                         });

}  // namespace
}  // namespace karez::test
