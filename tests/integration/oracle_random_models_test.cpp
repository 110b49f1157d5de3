// Every architecture and shape that Karez runs, as small models with random weights, against
// libllama.
#include <gtest/gtest.h>

#include <array>
#include <iostream>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "support/oracle.h"
#include "support/random_model.h"
#include "support/temporary_file.h"

namespace karez::test {
namespace {

struct Case {
  const char* name;
  RandomModelSpec spec;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

// Rows of quantised weights must be multiples of 256.
RandomModelSpec shape(const char* architecture, int head_dim, int num_heads, int num_kv_heads) {
  RandomModelSpec spec;
  spec.architecture = architecture;
  spec.head_dim = head_dim;
  spec.num_heads = num_heads;
  spec.num_kv_heads = num_kv_heads;
  // qwen2 has no key for it.
  spec.hidden_size = spec.architecture == "qwen2" ? head_dim * num_heads : 256;
  spec.intermediate_size = 512;
  return spec;
}

template <typename Change>
RandomModelSpec with(RandomModelSpec spec, Change change) {
  change(spec);
  return spec;
}

std::vector<Case> cases() {
  using Spec = RandomModelSpec;
  return {
      {"LlamaHead64Group1", shape("llama", 64, 4, 4)},
      {"LlamaHead80Group3", shape("llama", 80, 6, 2)},
      {"LlamaHead128Group4UntiedQ8", with(shape("llama", 128, 8, 2),
                                          [](Spec& s) {
                                            s.tied_embeddings = false;
                                            s.weight_type = "q8_0";
                                          })},
      {"LlamaHead256Group8", shape("llama", 256, 8, 1)},
      {"LlamaGroup7BiasesQ4", with(shape("llama", 64, 14, 2),
                                   [](Spec& s) {
                                     s.qkv_bias = true;
                                     s.hidden_size = 896;
                                     s.weight_type = "q4_0";
                                   })},
      {"LlamaRopeLinear",
       with(shape("llama", 64, 4, 2), [](Spec& s) { s.rope_scaling = "linear"; })},
      {"LlamaRopeYarn", with(shape("llama", 64, 4, 2), [](Spec& s) { s.rope_scaling = "yarn"; })},
      {"LlamaRopeFactors", with(shape("llama", 64, 4, 2),
                                [](Spec& s) {
                                  s.rope_factors = true;
                                  s.rope_freq_base = 500000;
                                })},
      {"Qwen2Head64Group7", shape("qwen2", 64, 14, 2)},
      {"Qwen2Head80Group1F16",
       with(shape("qwen2", 80, 4, 4), [](Spec& s) { s.weight_type = "f16"; })},
      {"Qwen2Head128Group8UntiedQ4K", with(shape("qwen2", 128, 8, 1),
                                           [](Spec& s) {
                                             s.tied_embeddings = false;
                                             s.weight_type = "q4_K";
                                             s.embedding_type = "q6_K";
                                           })},
      {"Qwen2RopeYarn", with(shape("qwen2", 64, 6, 2), [](Spec& s) { s.rope_scaling = "yarn"; })},
      {"Qwen3Head128Group4", shape("qwen3", 128, 8, 2)},
      {"Qwen3Head64Group3Q5",
       with(shape("qwen3", 64, 6, 2), [](Spec& s) { s.weight_type = "q5_0"; })},
      {"Qwen3Head256Group1Bf16",
       with(shape("qwen3", 256, 2, 2), [](Spec& s) { s.weight_type = "bf16"; })},
      {"Qwen3Head80Group8Untied",
       with(shape("qwen3", 80, 8, 1), [](Spec& s) { s.tied_embeddings = false; })},
      {"Qwen3Group7RopeYarn",
       with(shape("qwen3", 128, 7, 1), [](Spec& s) { s.rope_scaling = "yarn"; })},
      {"Gemma3Head256Group4Window", with(shape("gemma3", 256, 4, 1),
                                         [](Spec& s) {
                                           s.num_layers = 7;  // one of them full: every sixth
                                           s.sliding_window = 64;
                                         })},
      {"Gemma3Head128Group1Q6K", with(shape("gemma3", 128, 2, 2),
                                      [](Spec& s) {
                                        s.num_layers = 6;
                                        s.sliding_window = 40;  // not whole blocks
                                        s.weight_type = "q6_K";
                                      })},
      {"Gemma3Head64Group3RopeLinear", with(shape("gemma3", 64, 3, 1),
                                            [](Spec& s) {
                                              s.num_layers = 6;
                                              s.sliding_window = 32;
                                              s.rope_scaling = "linear";
                                            })},
      {"Gemma3SoftCap", with(shape("gemma3", 80, 8, 1),
                             [](Spec& s) {
                               s.num_layers = 6;
                               s.sliding_window = 17;
                               s.final_logit_softcap = 30;
                             })},
  };
}

std::vector<TokenId> random_text(std::size_t count, int vocab_size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) {
    token = static_cast<TokenId>(random() % static_cast<std::uint64_t>(vocab_size));
  }
  return tokens;
}

// Logits of random models are small numbers around 0, so the margins of the best two are too; the
// differences are what counts. With f32 weights only the order of sums differs. Gemma's GELU goes
// through ggml's table of 16-bit floats, which turns last bits into steps. With other weights
// activations are rounded to 8 or 16 bits before each product, which does the same
// (oracle_logits_test.cpp). Measured: 1e-5, 1.2e-3 and 0.13; a wrong angle or mask gives more than
// 0.5.
constexpr double kMaxDifferenceF32 = 1e-4;
constexpr double kMaxDifferenceGelu = 5e-3;
constexpr double kMaxDifferenceRounded = 0.3;
constexpr double kMeanDifferenceRounded = 0.03;

double max_difference(const RandomModelSpec& spec) {
  if (spec.weight_type != "f32") {
    return kMaxDifferenceRounded;
  }
  return spec.architecture == "gemma3" ? kMaxDifferenceGelu : kMaxDifferenceF32;
}

// These models are too small to be worth more.
constexpr int kThreads = 1;

class OracleRandomModels : public testing::TestWithParam<Case> {};

void expect_close(const Agreement& agreement, const RandomModelSpec& spec) {
  std::cout << "  " << agreement.to_string() << std::endl;
  EXPECT_LE(agreement.max_difference(), max_difference(spec));
  EXPECT_LE(agreement.mean_difference(), kMeanDifferenceRounded);
}

TEST_P(OracleRandomModels, LogitsAgreeForOneSequence) {
  const RandomModelSpec& spec = GetParam().spec;
  const TemporaryFile file(std::string(GetParam().name) + ".gguf");
  random_model(spec).write(file.path());
  const std::vector<TokenId> text = random_text(600, spec.vocab_size, 7);
  const auto ours = paged_model(file.path(), {.num_threads = kThreads, .max_tokens = 640});
  const auto reference = llama_model(file.path(), {.num_threads = kThreads, .max_tokens = 640});
  // The prompt in one forward; then single rows and slices.
  expect_close(compare(*ours, *reference, single_sequence_schedule(text, 300, 40)), spec);
}

TEST_P(OracleRandomModels, LogitsAgreeForMixedSequences) {
  const RandomModelSpec& spec = GetParam().spec;
  const TemporaryFile file(std::string(GetParam().name) + ".gguf");
  random_model(spec).write(file.path());
  constexpr std::array<int, 4> kPrompts = {5, 16, 200, 90};
  std::vector<std::vector<TokenId>> texts;
  for (const int prompt : kPrompts) {
    texts.push_back(random_text(static_cast<std::size_t>(prompt + 40), spec.vocab_size,
                                static_cast<std::uint64_t>(prompt)));
  }
  const LlamaModelOptions llama_options{
      .num_threads = kThreads, .max_tokens = 256, .num_sequences = 4};
  const auto ours =
      paged_model(file.path(), {.num_threads = kThreads, .max_tokens = 256, .num_sequences = 4});
  const auto reference = llama_model(file.path(), llama_options);
  expect_close(compare(*ours, *reference, mixed_schedule(texts, kPrompts)), spec);
}

INSTANTIATE_TEST_SUITE_P(Shapes, OracleRandomModels, testing::ValuesIn(cases()),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace karez::test
