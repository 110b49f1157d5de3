#include <gtest/gtest.h>

#include "support/tier/residency_fixture.h"

namespace karez::test {
namespace {

class ResidencyEvict : public ResidencyFixture {};

TEST_F(ResidencyEvict, TakesTheSlotsOfBlocksThatThisStepDoesNotNeed) {
  const int a = open(8);
  const int b = open(8);  // takes all slots
  step(b, {0, 1, 2, 3});
  residency_->begin_step();
  read(b, {0, 1, 2, 5, 6});
  hint(a, {0, 1, 2, 3, 4, 5});
  residency_->prefetch();
  EXPECT_TRUE(read(a, {0, 1, 2}));
  EXPECT_EQ(resident(b, 8), (Blocks{0, 1, 2, 5, 6})) << "3, 4 and 7 were not needed";
  EXPECT_EQ(resident(a, 8), (Blocks{0, 1, 2})) << "the most useful ones";
  EXPECT_EQ(prefetch_stats().dropped, 3);
}

TEST_F(ResidencyEvict, OldestGoFirst) {
  const int a = open(2);
  const int b = open(8);
  step(b, {3, 4, 5});
  step(b, {0, 1, 2, 6});
  step(b, {7});
  residency_->begin_step();
  hint(a, {0, 1});
  residency_->prefetch();
  EXPECT_EQ(resident(b, 8), (Blocks{0, 1, 2, 5, 6, 7}));
}

TEST_F(ResidencyEvict, WhatWasFetchedOrHintedWaitsForItsLayerBeforeItGoes) {
  const int a = open(8);
  const int b = open(8);
  step(b, {0, 1, 2, 3, 4, 5});
  residency_->begin_step();
  read(b, {0, 1, 2, 3, 4, 5});
  hint(a, {0});  // into the slot of 6 or 7
  hint(b, {7});
  residency_->prefetch();
  residency_->end_step();
  residency_->advance();
  ASSERT_EQ(resident(a, 8), Blocks{0});
  ASSERT_EQ(resident(b, 8), (Blocks{0, 1, 2, 3, 4, 5, 7}));

  residency_->begin_step();
  hint(a, {1, 2, 3, 4, 5, 6, 7});
  residency_->prefetch();
  EXPECT_TRUE(is_resident(a, 0)) << "its layer has not run yet";
  EXPECT_TRUE(is_resident(b, 7)) << "neither has that of this one";
  read(b, {0});
  residency_->end_step();

  residency_->begin_step();
  hint(a, {1, 2, 3, 4, 5, 6, 7});
  residency_->prefetch();
  residency_->begin_layer(0);
  EXPECT_FALSE(is_resident(a, 0)) << "its layer has run without it";
  EXPECT_FALSE(is_resident(b, 7));
  EXPECT_EQ(of(LookaheadSource::kPrevious).wasted, 1);
}

TEST_F(ResidencyEvict, RowsOfOtherLayersKeepWhatTheLastStepNeeded) {
  make(16, 2);
  const int a = open(8);
  const int b = open(8);
  // Layer 1 has nearly all slots, and gives first.
  residency_->begin_step();
  residency_->begin_layer(1);
  for (int i = 0; i < 8; ++i) {
    residency_->need(0, block(a, i));
  }
  for (int i = 0; i < 5; ++i) {
    residency_->need(0, block(b, i));
  }
  ASSERT_TRUE(residency_->load().empty());
  residency_->end_step();
  residency_->begin_step();
  ASSERT_TRUE(read(a, {0}, 0));
  const Blocks before_a = resident(a, 8, 1);
  const Blocks before_b = resident(b, 8, 1);
  ASSERT_GE(before_a.size() + before_b.size(), 12U);
  hint(a, {1, 2, 3, 4, 5, 6, 7}, 0);
  residency_->prefetch();
  residency_->begin_layer(0);
  EXPECT_EQ(resident(a, 8, 1), before_a);
  EXPECT_EQ(resident(b, 8, 1), before_b);
  EXPECT_GT(of(LookaheadSource::kPrevious).fetched, 0);
}

TEST_F(ResidencyEvict, ALoadTakesTheSlotsOfPrefetches) {
  for (const bool are_held : {false, true}) {
    for (const int num_failing : {0, 1}) {
      make(8);
      const int a = open(8);
      const int b = open(8);
      evict_all();
      tier_->holds_reads = are_held;
      residency_->begin_step();
      hint(a, {0, 1, 2, 3, 4, 5, 6, 7});
      residency_->prefetch();
      tier_->reads_to_fail = num_failing;
      EXPECT_TRUE(read(b, {0, 1, 2, 3, 4, 5, 6, 7})) << are_held << num_failing;
      EXPECT_EQ(resident(a, 8), Blocks{});
      EXPECT_EQ(of(LookaheadSource::kPrevious).wasted, num_failing == 0 ? 8 : 4);
      close(b);
      close(a);
    }
  }
}

TEST_F(ResidencyEvict, ALoadThatIsPartlyUnderWayTakesTheSlotsOfTheRest) {
  const int a = open(8);
  const int b = open(4);
  evict_all();
  tier_->holds_reads = true;
  residency_->begin_step();
  hint(a, {0, 1, 2, 3, 4, 5, 6, 7});
  residency_->prefetch();
  residency_->begin_layer(0);
  for (const int i : {0, 1, 4, 5}) {
    residency_->need(0, block(a, i));
  }
  for (const int i : {0, 1, 2, 3}) {
    residency_->need(0, block(b, i));
  }
  EXPECT_TRUE(residency_->load().empty());
  EXPECT_EQ(resident(a, 8), (Blocks{0, 1, 4, 5}));
  EXPECT_EQ(resident(b, 4), (Blocks{0, 1, 2, 3}));
  EXPECT_EQ(of(LookaheadSource::kPrevious).late, 4);
  EXPECT_EQ(of(LookaheadSource::kPrevious).wasted, 4);
}

TEST_F(ResidencyEvict, SlotsOfPrefetchesAreRoomForNewBlocks) {
  const int a = open(8);
  evict_all();
  tier_->holds_reads = true;
  residency_->begin_step();
  hint(a, {0, 1, 2, 3, 4, 5});
  residency_->prefetch();
  residency_->end_step();
  EXPECT_EQ(residency_->num_fetching_slots(), 6);
  EXPECT_EQ(kv_->slots_available(), 8);
  EXPECT_EQ(kv_->stats().slots_used, 0);
  EXPECT_EQ(kv_->check_invariants(), "");
  open(8);
  EXPECT_EQ(of(LookaheadSource::kPrevious).wasted, 6);
}

// In the same load the writes that it waited for are victims.
TEST_F(ResidencyEvict, ALoadTakesTheSlotsOfWritesThatItWaitedFor) {
  const int a = open(4);
  evict_all();
  tier_->holds_writes = true;
  open(8);
  EXPECT_TRUE(read(a, {0, 1, 2, 3}));
  EXPECT_EQ(residency_->stats().blocks_lost, 0);
}

}  // namespace
}  // namespace karez::test
