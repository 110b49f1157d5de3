// Greedy continuations against libllama's, token by token.
#include <gtest/gtest.h>

#include <iostream>
#include <string>
#include <vector>

#include "support/dequantised_copy.h"
#include "support/model_files.h"
#include "support/oracle.h"
#include "support/temporary_file.h"

namespace karez::test {
namespace oracle_greedy_test {

constexpr int kPromptTokens = 500;
constexpr int kGenerated = 128;
// Where the reference's two best logits are closer than this, either may win. With quantised
// weights even libllama differs from itself by more (see oracle_logits_test.cpp); with f32 weights
// only last bits differ.
constexpr float kMarginQuantised = 0.5F;
constexpr float kMarginF32 = 0.02F;

class OracleGreedy : public testing::TestWithParam<const char*> {};

void compare_greedy(const std::string& path, float margin_tolerance) {
  const auto ours = paged_model(path, {.max_tokens = kPromptTokens + kGenerated});
  const auto reference = llama_model(path, {.max_tokens = kPromptTokens + kGenerated});
  std::vector<TokenId> input = real_text(path, kPromptTokens);
  ASSERT_LE(input.size(), static_cast<std::size_t>(kMaxForwardRows));
  const TokenId last = input.back();
  input.pop_back();
  const std::vector<Chunk> prompt = {Chunk{0, input, false}};
  ours->forward(prompt);
  reference->forward(prompt);

  int differing = 0;
  TokenId token = last;
  for (int i = 0; i < kGenerated; ++i) {
    const std::vector<Chunk> step = {Chunk{0, {token}, true}};
    const TokenId our_token = argmax(ours->forward(step));
    const std::span<const float> logits = reference->forward(step);
    const TokenId reference_token = argmax(logits);
    if (our_token != reference_token) {
      ++differing;
      std::cout << "  token " << i << ": " << our_token << " instead of " << reference_token
                << ", whose margin is " << top_margin(logits) << std::endl;
      EXPECT_LE(top_margin(logits), margin_tolerance);
    }
    // After a near tie both go on with the same text, or every later token would differ.
    token = reference_token;
  }
  std::cout << "  " << kGenerated - differing << " of " << kGenerated << " tokens identical"
            << std::endl;
}

TEST_P(OracleGreedy, TokensAreThoseOfTheReference) {
  compare_greedy(model_path(GetParam()), kMarginQuantised);
}

TEST_P(OracleGreedy, TokensAreThoseOfTheReferenceWithF32Weights) {
  const TemporaryFile file("f32.gguf");
  write_dequantised_copy(model_path(GetParam()), file.path());
  compare_greedy(file.path(), kMarginF32);
}

INSTANTIATE_TEST_SUITE_P(Models, OracleGreedy, testing::Values(kSmolLm2, kGemma3),
                         [](const auto& test) {
                           return test.param == kSmolLm2 ? "SmolLM2" : "Gemma3";
                         });

}  // namespace oracle_greedy_test
}  // namespace karez::test
