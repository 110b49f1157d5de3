#include "spec/ngram_proposer.h"

#include <gtest/gtest.h>

#include <random>

namespace karez {
namespace {

DraftProposal propose(const std::vector<TokenId>& tokens, int max_drafts,
                      const NgramOptions& options = {}) {
  NgramProposer proposer(options);
  const DraftQuery query{{1, 0}, tokens, max_drafts};
  return proposer.propose(std::span(&query, 1)).front();
}
using Tokens = std::vector<TokenId>;

TEST(NgramProposer, TakesWhatFollowedTheLastTime) {
  EXPECT_EQ(propose({1, 2, 3, 4, 9, 1, 2, 3}, 2).tokens, (Tokens{4, 9}));
  EXPECT_EQ(propose({1, 2, 7, 1, 2, 8, 5, 1, 2}, 1).tokens, Tokens{8}) << "the latest place";
  EXPECT_EQ(propose({5, 1, 2, 7, 6, 1, 2, 8, 5, 1, 2}, 1).tokens, Tokens{7})
      << "a longer match beats a later one";
}

TEST(NgramProposer, SaysNothingWithoutAMatch) {
  EXPECT_TRUE(propose({1}, 4).tokens.empty());
  EXPECT_TRUE(propose({1, 2, 3, 4}, 4).tokens.empty());
  EXPECT_TRUE(propose({3, 1, 2, 3}, 4).tokens.empty()) << "one token is less than min_match";
  EXPECT_EQ(propose({3, 1, 2, 3}, 4, {.min_match = 1, .max_match = 3}).tokens,
            (Tokens{1, 2, 3, 1}));
  EXPECT_TRUE(propose({1, 2, 1, 2}, 0).tokens.empty());
}

TEST(NgramProposer, ALoopStaysALoop) {
  EXPECT_EQ(propose({9, 1, 2, 1, 2, 1, 2}, 5).tokens, (Tokens{1, 2, 1, 2, 1}));
  EXPECT_EQ(propose({4, 4, 4}, 3).tokens, (Tokens{4, 4, 4}));
}

TEST(NgramProposer, IsTheMoreConfidentTheLongerTheMatch) {
  const auto confidence = [](int match) {
    Tokens tokens;
    for (int i = 0; i < match; ++i) {
      tokens.push_back(i + 100);
    }
    tokens.push_back(7);
    for (int i = 0; i < match; ++i) {
      tokens.push_back(i + 100);
    }
    return propose(tokens, 1).confidence;
  };
  EXPECT_EQ(confidence(2), 0);
  EXPECT_EQ(confidence(3), 0);
  EXPECT_EQ(confidence(4), 1);
  EXPECT_EQ(confidence(8), 2);
  EXPECT_EQ(confidence(40), 2);
}

// Against every pair of places, tried one by one.
TEST(NgramProposer, FindsTheLongestMatchOfRandomTokens) {
  std::mt19937 random(1);
  for (int round = 0; round < 500; ++round) {
    Tokens tokens(std::size_t{1} + random() % 60);
    for (TokenId& token : tokens) {
      token = static_cast<TokenId>(random() % 3);
    }
    std::size_t best = 0;
    std::size_t next = 0;
    for (std::size_t end = tokens.size() - 1; end > 0; --end) {
      std::size_t length = 0;
      while (length < 5 && length < end &&
             tokens[end - 1 - length] == tokens[tokens.size() - 1 - length]) {
        ++length;
      }
      if (length > best) {
        best = length;
        next = end;
      }
    }
    const auto drafts = propose(tokens, 1, {.min_match = 2, .max_match = 5}).tokens;
    if (best < 2) {
      EXPECT_TRUE(drafts.empty());
    } else {
      EXPECT_EQ(drafts, Tokens{tokens[next]});
    }
  }
}

}  // namespace
}  // namespace karez
