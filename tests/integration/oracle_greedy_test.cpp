// Greedy continuations against libllama's, token by token.
#include <gtest/gtest.h>

#include <iostream>
#include <vector>

#include "support/model_files.h"
#include "support/oracle.h"

namespace karez::test {
namespace {

constexpr int kPromptTokens = 500;
constexpr int kGenerated = 128;
// As in oracle_logits_test.cpp: logits of the two engines differ by less than this at the top, so
// where the reference's two best are closer, either may win.
constexpr float kMarginTolerance = 0.25F;

class OracleGreedy : public testing::TestWithParam<const char*> {};

TEST_P(OracleGreedy, TokensAreThoseOfTheReference) {
  const std::string path = model_path(GetParam());
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
      EXPECT_LE(top_margin(logits), kMarginTolerance);
    }
    // After a near tie both go on with the same text, or every later token would differ.
    token = reference_token;
  }
  std::cout << "  " << kGenerated - differing << " of " << kGenerated << " tokens identical"
            << std::endl;
}

INSTANTIATE_TEST_SUITE_P(Models, OracleGreedy, testing::Values(kSmolLm2, kGemma3),
                         [](const auto& test) {
                           return test.param == kSmolLm2 ? "SmolLM2" : "Gemma3";
                         });

}  // namespace
}  // namespace karez::test
