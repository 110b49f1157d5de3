#include "engine/token_logprobs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace karez {
namespace {

TEST(TokenLogprobs, AreTheLogSoftmaxOfTheLogits) {
  const std::vector<float> logits = {1.0F, 3.0F, 2.0F};
  const auto result = token_logprobs(logits, 2, 2);
  ASSERT_EQ(result.size(), 3U);
  const double log_sum = std::log(std::exp(1.0) + std::exp(3.0) + std::exp(2.0));
  EXPECT_EQ(result[0].token, 2);
  EXPECT_NEAR(result[0].logprob, 2.0 - log_sum, 1e-6);
  EXPECT_EQ(result[1].token, 1);
  EXPECT_NEAR(result[1].logprob, 3.0 - log_sum, 1e-6);
  EXPECT_EQ(result[2].token, 2);
}

TEST(TokenLogprobs, GiveAtMostTheVocabularyAndLowerIdsFirst) {
  const auto result = token_logprobs(std::vector<float>{5.0F, 5.0F}, 0, 20);
  ASSERT_EQ(result.size(), 3U);
  EXPECT_EQ(result[1].token, 0);
  EXPECT_EQ(result[2].token, 1);
  EXPECT_EQ(token_logprobs(std::vector<float>{5.0F, 5.0F}, 0, 0).size(), 1U);
}

TEST(TokenLogprobs, StayFiniteForHugeLogitsAndImpossibleTokens) {
  const float impossible = -std::numeric_limits<float>::infinity();
  const auto result = token_logprobs(std::vector<float>{1e30F, impossible}, 1, 2);
  EXPECT_EQ(result[0].logprob, kLowestLogprob);
  EXPECT_EQ(result[1].logprob, 0.0F);
  EXPECT_EQ(result[2].logprob, kLowestLogprob);
}

}  // namespace
}  // namespace karez
