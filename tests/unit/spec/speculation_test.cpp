#include "spec/speculation.h"

#include <gtest/gtest.h>

#include "support/fake_draft_proposer.h"

namespace karez::test {
namespace {

constexpr DraftSequence kSequence{7, 0};

// A sequence that counts upwards, and a drafter that knows or does not.
class SpeculationTest : public testing::Test {
 protected:
  void start(bool knows, bool is_free, SpeculationOptions options = {}) {
    auto proposer = std::make_unique<FakeDraftProposer>(
        [knows](const DraftQuery& query) {
          std::vector<TokenId> drafts;
          for (int i = 1; i <= query.max_drafts; ++i) {
            drafts.push_back(query.tokens.back() + (knows ? i : 1000));
          }
          return drafts;
        },
        is_free);
    proposer_ = proposer.get();
    speculation_ = std::make_unique<Speculation>(options, std::move(proposer));
  }
  // Returns how many drafts there were.
  int step(int max_drafts = 100) {
    const DraftQuery query{kSequence, tokens_, max_drafts};
    const auto drafts = speculation_->draft(std::span(&query, 1)).front().tokens;
    std::vector<TokenId> came;
    do {
      came.push_back(tokens_.back() + 1);
      tokens_.push_back(came.back());
    } while (came.size() <= drafts.size() && drafts[came.size() - 1] == came.back());
    speculation_->note_step(1 + static_cast<int>(drafts.size()),
                            0.010 + 0.002 * static_cast<double>(drafts.size()));
    speculation_->note(kSequence, static_cast<int>(drafts.size()), came);
    return static_cast<int>(drafts.size());
  }

  std::vector<TokenId> tokens_ = {1};
  FakeDraftProposer* proposer_ = nullptr;
  std::unique_ptr<Speculation> speculation_;
};

TEST_F(SpeculationTest, CountsWhatWasAccepted) {
  start(true, false, {.max_drafts = 3, .min_drafts = 3});
  EXPECT_EQ(step(), 3);
  EXPECT_EQ(step(2), 2) << "as many as the sequence can use";
  EXPECT_EQ(step(0), 0);
  const SpeculationStats& stats = speculation_->stats();
  EXPECT_EQ(stats.drafts, 2);
  EXPECT_EQ(stats.draft_tokens, 5);
  EXPECT_EQ(stats.accepted_tokens, 5);
  EXPECT_EQ(stats.acceptance(), 1.0);
  EXPECT_EQ(stats.accepted_at[0], 2);
  EXPECT_EQ(stats.accepted_at[2], 1);
  EXPECT_EQ(tokens_.size(), 1U + 4 + 3 + 1);
}

TEST_F(SpeculationTest, ADrafterThatKnowsGetsLongerDrafts) {
  start(true, true);
  for (int i = 0; i < 10; ++i) {
    step();
  }
  EXPECT_EQ(step(), 16);
  EXPECT_EQ(speculation_->stats().sequences_off, 0);
}

TEST_F(SpeculationTest, ASequenceThatCanUseNoDraftIsNotSwitchedOff) {
  start(true, true);
  for (int i = 0; i < 10; ++i) {
    step();
  }
  ASSERT_EQ(speculation_->stats().sequences_off, 0);
  const auto before = speculation_->stats().switched_off;
  EXPECT_EQ(step(0), 0);
  EXPECT_EQ(speculation_->stats().switched_off, before);
  EXPECT_EQ(speculation_->stats().sequences_off, 0);
}

TEST_F(SpeculationTest, ADrafterThatDoesNotPayIsSwitchedOffAndCounted) {
  for (const bool is_free : {true, false}) {
    start(false, is_free);
    int drafted = 0;
    for (int i = 0; i < 60; ++i) {
      drafted += step();
    }
    EXPECT_LT(drafted, 20);
    EXPECT_EQ(speculation_->stats().sequences_off, 1);
    EXPECT_GE(speculation_->stats().switched_off, 1);
    EXPECT_LE(speculation_->stats().switched_off, 3);
    EXPECT_EQ(speculation_->stats().accepted_tokens, 0);
  }
}

TEST_F(SpeculationTest, AFreeDrafterThatBecomesRightIsSwitchedOnAgain) {
  bool knows = false;
  auto proposer = std::make_unique<FakeDraftProposer>(
      [&knows](const DraftQuery& query) {
        return std::vector<TokenId>{query.tokens.back() + (knows ? 1 : 1000)};
      },
      true);
  speculation_ = std::make_unique<Speculation>(SpeculationOptions{}, std::move(proposer));
  for (int i = 0; i < 60; ++i) {
    step();
  }
  EXPECT_EQ(step(), 0);
  knows = true;
  int waited = 0;
  while (step() == 0) {
    ++waited;
  }
  EXPECT_LE(waited, 8);
  EXPECT_EQ(speculation_->stats().sequences_off, 0);
}

TEST_F(SpeculationTest, ADrafterThatCostsTimeIsTriedAgainAfterAWhile) {
  start(false, false);
  for (int i = 0; i < 60; ++i) {
    step();
  }
  const auto before = proposer_->asked().size();
  for (int i = 0; i < 130; ++i) {
    step();
  }
  const auto asked = proposer_->asked().size() - before;
  EXPECT_GE(asked, 1U);
  EXPECT_LE(asked, 4U) << "one try in 64 tokens";
}

TEST_F(SpeculationTest, ForgetsASequence) {
  start(false, true);
  for (int i = 0; i < 60; ++i) {
    step();
  }
  EXPECT_EQ(proposer_->known().size(), 1U);
  speculation_->forget(kSequence);
  EXPECT_TRUE(proposer_->known().empty());
  EXPECT_EQ(speculation_->stats().sequences_off, 0);
  speculation_->forget(kSequence);
  EXPECT_TRUE(proposer_->known().empty());
  step();
  EXPECT_EQ(proposer_->known().size(), 1U) << "the next one begins anew";
}

}  // namespace
}  // namespace karez::test
