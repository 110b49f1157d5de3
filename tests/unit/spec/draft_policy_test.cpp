#include "spec/draft_policy.h"

#include <gtest/gtest.h>

namespace karez {
namespace {

TEST(StepCost, FindsWhatARowCosts) {
  StepCost cost;
  EXPECT_GT(cost.row_in_tokens(1, 0), 0);
  for (int i = 0; i < 50; ++i) {
    const int rows = 1 + i % 5;
    cost.add(rows, 0.010 + 0.002 * rows);
  }
  // A step of one row takes 12 ms and gives a token; a row takes 2 ms.
  EXPECT_NEAR(cost.row_in_tokens(1, 0), 2.0 / 12, 0.01);
  EXPECT_NEAR(cost.row_in_tokens(4, 0), 2.0 * 4 / 18, 0.01);
  EXPECT_NEAR(cost.row_in_tokens(1, 0.004), 6.0 / 12, 0.01);
}

// As in prose: one draft now and then.
TEST(StepCost, FindsItWhereFewStepsHaveADraft) {
  StepCost cost;
  for (int i = 0; i < 60; ++i) {
    const int rows = i % 5 == 0 ? 2 : 1;
    cost.add(rows, 0.002 + 0.008 * rows);
  }
  // 0.8.
  EXPECT_NEAR(cost.row_in_tokens(1, 0), 0.7, 0.15);
}

TEST(StepCost, GuessesUntilStepsDiffer) {
  StepCost cost;
  for (int i = 0; i < 20; ++i) {
    cost.add(8, 0.040);
  }
  EXPECT_NEAR(cost.row_in_tokens(8, 0), 0.6, 0.1);
}

TEST(StepCost, NoiseDoesNotMakeRowsFreeOrAbsurd) {
  StepCost cost;
  for (int i = 0; i < 20; ++i) {
    cost.add(1 + i % 5, i % 5 == 0 ? 1.0 : 0.001);  // smaller steps take longer
  }
  EXPECT_GE(cost.row_in_tokens(1, 0), 0.01);
  EXPECT_LE(cost.row_in_tokens(1, 0), 20);
}

TEST(DraftPolicy, DraftsAsFarAsTheyPay) {
  DraftPolicy policy;
  for (int i = 0; i < 50; ++i) {
    policy.note(0, 4, 4);
  }
  EXPECT_GT(policy.acceptance(0), 0.98);
  EXPECT_EQ(policy.num_drafts(0, 0.2, 16), 16);
  EXPECT_EQ(policy.num_drafts(0, 0.2, 5), 5);
  EXPECT_EQ(policy.num_drafts(0, 1.5, 16), 0) << "a row costs more than a token";
  EXPECT_EQ(policy.num_drafts(0, 0.2, 0), 0);
  for (int i = 0; i < 50; ++i) {
    policy.note(0, 4, 0);
  }
  EXPECT_EQ(policy.num_drafts(0, 0.2, 16), 0);
}

TEST(DraftPolicy, JudgesEachConfidenceApart) {
  DraftPolicy policy;
  for (int i = 0; i < 30; ++i) {
    policy.note(0, 2, 0);
    policy.note(2, 8, 8);
  }
  EXPECT_EQ(policy.num_drafts(0, 0.25, 8), 0);
  EXPECT_EQ(policy.num_drafts(2, 0.25, 8), 8);
}

TEST(DraftPolicy, ComesBackAsFastAsItWent) {
  DraftPolicy policy;
  for (int i = 0; i < 100; ++i) {
    policy.note(1, 1, 0);
  }
  int steps = 0;
  while (policy.num_drafts(1, 0.25, 8) == 0) {
    policy.note(1, 1, 1);
    ++steps;
  }
  EXPECT_LE(steps, 3);
}

}  // namespace
}  // namespace karez
