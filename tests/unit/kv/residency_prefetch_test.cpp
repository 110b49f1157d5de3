#include <gtest/gtest.h>

#include "support/tier/residency_fixture.h"

namespace karez::test {
namespace {

class ResidencyPrefetch : public ResidencyFixture {};

TEST_F(ResidencyPrefetch, AHintedBlockIsThereWhenItIsNeeded) {
  const int a = open(8);
  evict_all();
  ASSERT_EQ(resident(a, 8), Blocks{});
  residency_->begin_step();
  read(a, {0});
  hint(a, {5, 2}, 0, LookaheadSource::kDraft);
  EXPECT_FALSE(is_resident(a, 5)) << "a hint alone does nothing";
  residency_->prefetch();
  residency_->end_step();
  residency_->begin_step();
  EXPECT_TRUE(read(a, {2, 5}));
  residency_->end_step();
  EXPECT_EQ(residency_->stats().demand_misses, 1) << "of the first step";
  EXPECT_EQ(of(LookaheadSource::kDraft).predicted, 2);
  EXPECT_EQ(of(LookaheadSource::kDraft).fetched, 2);
  EXPECT_EQ(of(LookaheadSource::kDraft).useful, 2);
  EXPECT_EQ(of(LookaheadSource::kPrevious).predicted, 0);
  EXPECT_EQ(prefetch_stats().layers_read, 2);
  EXPECT_EQ(prefetch_stats().layers_ready, 1);
}

TEST_F(ResidencyPrefetch, NeighboursInAnExtentAreOneTransfer) {
  const int a = open(8);
  evict_all();
  residency_->begin_step();
  hint(a, {6, 1, 3, 0, 2, 4});  // blocks 0 to 3 are an extent
  residency_->prefetch();
  ASSERT_EQ(tier_->reads.size(), 3U);
  EXPECT_EQ(tier_->reads[0].num_blocks, 4);
  EXPECT_EQ(tier_->reads[1].num_blocks, 1);
  EXPECT_EQ(tier_->reads[2].num_blocks, 1);
  EXPECT_TRUE(read(a, {0, 1, 2, 3, 4, 6}));
}

TEST_F(ResidencyPrefetch, WhatIsThereOrHintedOrUnderWayIsNotReadAgain) {
  const int a = open(4);
  evict_all();
  tier_->holds_reads = true;
  residency_->begin_step();
  read(a, {0});
  hint(a, {0, 1, 1});
  residency_->prefetch();
  hint(a, {1}, 0, LookaheadSource::kSelf);
  residency_->prefetch();
  EXPECT_EQ(tier_->reads.size(), 2U) << "one of them the load's";
  EXPECT_EQ(prefetch_stats().already_resident, 1);
  EXPECT_EQ(prefetch_stats().already_hinted, 2);
  EXPECT_EQ(of(LookaheadSource::kSelf).fetched, 0);
}

TEST_F(ResidencyPrefetch, ALateBlockIsWaitedForAndNotReadTwice) {
  const int a = open(4);
  evict_all();
  tier_->holds_reads = true;
  residency_->begin_step();
  hint(a, {0, 1, 2}, 0, LookaheadSource::kProbe);
  residency_->prefetch();
  residency_->begin_layer(0);
  EXPECT_FALSE(is_resident(a, 0));
  EXPECT_TRUE(residency_->need(0, block(a, 0)));
  EXPECT_FALSE(residency_->need(0, block(a, 0))) << "named already";
  EXPECT_TRUE(residency_->load().empty());
  EXPECT_EQ(*place(a, 0, 0), static_cast<std::byte>(content(a, 0, 0)));
  EXPECT_EQ(tier_->reads.size(), 1U);
  EXPECT_EQ(of(LookaheadSource::kProbe).late, 1);
  EXPECT_EQ(residency_->stats().demand_misses, 1);
  EXPECT_EQ(prefetch_stats().layers_ready, 0);
  EXPECT_TRUE(read(a, {0, 1})) << "what came with it is of use later";
  EXPECT_EQ(of(LookaheadSource::kProbe).useful, 1);
  EXPECT_EQ(of(LookaheadSource::kProbe).late, 1);
}

TEST_F(ResidencyPrefetch, ANeededPrefetchDoesNotStayBehindOthersInTheQueue) {
  make(12, 1, 1);
  const int a = open(12);
  evict_all();
  tier_->holds_reads = true;
  residency_->begin_step();
  hint(a, {0, 4, 8});  // three extents, room for one transfer in flight
  residency_->prefetch();
  ASSERT_EQ(tier_->reads.size(), 1U);
  EXPECT_TRUE(read(a, {8}));
  ASSERT_GE(tier_->reads.size(), 2U);
  EXPECT_EQ(tier_->reads[1].identity.block, block(a, 8).value);
}

TEST_F(ResidencyPrefetch, AFailedPrefetchLosesNothing) {
  const int a = open(4);
  evict_all();
  tier_->reads_to_fail = 1;
  residency_->begin_step();
  hint(a, {0, 1});
  residency_->prefetch();
  residency_->begin_layer(0);
  EXPECT_EQ(prefetch_stats().failed, 2);
  EXPECT_FALSE(is_resident(a, 0));
  EXPECT_EQ(residency_->num_fetching_slots(), 0);
  EXPECT_TRUE(read(a, {0, 1}));
  EXPECT_EQ(residency_->stats().blocks_lost, 0);
}

TEST_F(ResidencyPrefetch, ALatePrefetchThatFailsIsReadOnDemand) {
  const int a = open(4);
  evict_all();
  tier_->holds_reads = true;
  residency_->begin_step();
  hint(a, {0, 1});
  residency_->prefetch();
  tier_->reads_to_fail = 1;
  EXPECT_TRUE(read(a, {0, 2}));
  EXPECT_EQ(residency_->stats().blocks_lost, 0);
  EXPECT_EQ(prefetch_stats().failed, 2);
  EXPECT_EQ(of(LookaheadSource::kPrevious).late, 0);
}

TEST_F(ResidencyPrefetch, ASilentTierCostsALatePrefetchItsDeadlineAndNothingElse) {
  const int a = open(4);
  evict_all();
  tier_->holds_reads = true;
  tier_->is_silent = true;
  residency_->begin_step();
  hint(a, {0});
  residency_->prefetch();
  residency_->begin_layer(0);
  residency_->need(0, block(a, 0));
  tier_->holds_reads = false;  // the next ones are answered
  EXPECT_TRUE(residency_->load().empty());
  EXPECT_EQ(prefetch_stats().failed, 1);
  EXPECT_EQ(residency_->num_loose_slots(), 2) << "the tier may still write there";
}

TEST_F(ResidencyPrefetch, BlocksThatAreFreedUnderWayLeaveNothingBehind) {
  const int a = open(8);
  evict_all();
  tier_->holds_reads = true;
  residency_->begin_step();
  hint(a, {0, 1, 2, 5, 6});
  residency_->prefetch();
  residency_->end_step();
  ASSERT_TRUE(kv_->truncate(sequences_[static_cast<std::size_t>(a)], 6 * kBlockSize));
  EXPECT_EQ(residency_->num_fetching_slots(), 4);
  EXPECT_EQ(kv_->check_invariants(), "");
  close(a);
  EXPECT_EQ(residency_->num_fetching_slots(), 0);
  EXPECT_EQ(residency_->num_loose_slots(), 6);
  EXPECT_EQ(kv_->check_invariants(), "");
  // The same ids and extents in other hands, while the old reads are still under way.
  tier_->holds_reads = false;
  const int b = open(3);
  tier_->let_go();
  residency_->advance();
  EXPECT_EQ(residency_->num_loose_slots(), 1);
  EXPECT_TRUE(read(b, {0, 1, 2}));
  EXPECT_EQ(of(LookaheadSource::kPrevious).wasted, 5);
}

TEST_F(ResidencyPrefetch, ASilentTierKeepsTheSlotsOfFreedBlocksUntilItReports) {
  const int a = open(8);
  evict_all();
  tier_->holds_reads = true;
  tier_->is_silent = true;
  residency_->begin_step();
  hint(a, {0, 1});
  residency_->prefetch();
  close(a);
  residency_->settle();
  EXPECT_EQ(residency_->num_loose_slots(), 3);
  EXPECT_EQ(kv_->check_invariants(), "");
  EXPECT_EQ(kv_->slots_available(), 6);
  tier_->let_go();
  residency_->advance();
  EXPECT_EQ(kv_->slots_available(), 8);
}

TEST_F(ResidencyPrefetch, ABlockThatIsWrittenToAgainHasNoPrefetch) {
  for (const bool is_held : {false, true}) {
    make(8);
    const int a = open(2);
    const SequenceId id = sequences_[static_cast<std::size_t>(a)];
    ASSERT_TRUE(kv_->truncate(id, 2 * kBlockSize - 1));
    evict_all();
    tier_->holds_reads = is_held;
    residency_->begin_step();
    hint(a, {1});
    residency_->prefetch();
    residency_->end_step();
    ASSERT_TRUE(kv_->extend(id, 1));
    EXPECT_EQ(*place(a, 1, 0), static_cast<std::byte>(content(a, 1, 0)));
    EXPECT_FALSE(residency_->is_any_home(block(a, 1)));
    EXPECT_EQ(of(LookaheadSource::kPrevious).wasted, 1);
    EXPECT_EQ(kv_->check_invariants(), "");
  }
}

// What a block has in the fast tier stays when the rest of it is brought up.
TEST_F(ResidencyPrefetch, AFetchedPartOfABlockThatIsWrittenToAgainGivesUpNoSlot) {
  make(5, 2);
  const int a = open(2);
  const SequenceId id = sequences_[static_cast<std::size_t>(a)];
  ASSERT_TRUE(kv_->truncate(id, 2 * kBlockSize - 1));
  const int b = open(2);
  const int c = open(2);
  close(c);
  close(b);
  // Two blocks that are being filled hold 4 of 5 slots.
  for (int i = 0; i < 2; ++i) {
    sequences_.push_back(kv_->open());
    ASSERT_TRUE(kv_->extend(sequences_.back(), 1));
  }
  ASSERT_EQ(resident(a, 2, 0).size() + resident(a, 2, 1).size(), 0U);
  residency_->begin_step();
  hint(a, {1}, 0);
  residency_->prefetch();
  residency_->end_step();
  residency_->advance();
  ASSERT_TRUE(is_resident(a, 1, 0));
  residency_->begin_step();
  hint(a, {1}, 0);
  residency_->end_step();
  EXPECT_FALSE(kv_->extend(id, 1)) << "no room for what it has in layer 1";
  EXPECT_EQ(kv_->check_invariants(), "");
}

TEST_F(ResidencyPrefetch, TheMostUsefulComeFirstUnderTheCap) {
  const int a = open(8);
  evict_all();
  residency_->set_fetch_cap(bytes(3));
  residency_->begin_step();
  EXPECT_EQ(residency_->fetch_cap(), bytes(3));
  hint(a, {7, 0});
  residency_->prefetch();
  hint(a, {3, 5});
  residency_->prefetch();
  residency_->begin_layer(0);
  EXPECT_EQ(resident(a, 8), (Blocks{0, 3, 7}));
  EXPECT_EQ(prefetch_stats().dropped, 1);
  residency_->end_step();
  residency_->begin_step();
  hint(a, {5});
  residency_->prefetch();
  residency_->begin_layer(0);
  EXPECT_TRUE(is_resident(a, 5)) << "the cap is of a step";
}

TEST_F(ResidencyPrefetch, BetweenStepsNoCapHoldsAndTheNextStepHasItsOwn) {
  const int a = open(8);
  evict_all();
  residency_->set_fetch_cap(bytes(1));
  residency_->begin_step();
  read(a, {0});
  residency_->end_step();
  hint(a, {1, 2, 3, 5}, 0, LookaheadSource::kProbe);
  EXPECT_EQ(residency_->prefetch_between_steps(), 4);
  EXPECT_EQ(residency_->prefetch_between_steps(), 0);
  residency_->begin_step();
  EXPECT_TRUE(read(a, {1, 2, 3, 5}));
  EXPECT_EQ(residency_->stats().demand_misses, 1) << "of the first step";
  EXPECT_EQ(of(LookaheadSource::kProbe).useful, 4);
  hint(a, {6, 7});
  residency_->prefetch();
  residency_->end_step();
  EXPECT_EQ(of(LookaheadSource::kPrevious).fetched, 1) << "under the cap of one block";
}

TEST_F(ResidencyPrefetch, HintsThatNobodyFetchedEndWithTheStep) {
  const int a = open(4);
  evict_all();
  residency_->begin_step();
  hint(a, {0});
  residency_->end_step();
  residency_->begin_step();
  residency_->prefetch();
  EXPECT_TRUE(tier_->reads.empty());
  hint(a, {0});
  residency_->prefetch();
  EXPECT_EQ(tier_->reads.size(), 1U);
  EXPECT_EQ(prefetch_stats().dropped, 1);
}

TEST_F(ResidencyPrefetch, AHintOfABlockThatIsLoadedMeanwhileIsDropped) {
  const int a = open(4);
  evict_all();
  residency_->begin_step();
  hint(a, {0});
  read(a, {0});
  residency_->prefetch();
  EXPECT_EQ(tier_->reads.size(), 1U);
  EXPECT_EQ(prefetch_stats().dropped, 1);
}

TEST_F(ResidencyPrefetch, AHintIsNotARead) {
  const int a = open(4);
  evict_all();
  residency_->begin_step();
  read(a, {0});
  residency_->end_step();
  residency_->begin_step();
  residency_->begin_layer(0);
  hint(a, {0, 1});
  residency_->prefetch();
  residency_->begin_layer(0);
  ASSERT_TRUE(is_resident(a, 1));
  EXPECT_FALSE(residency_->was_read(0, 0, block(a, 0)));
  EXPECT_FALSE(residency_->was_read(0, 0, block(a, 1)));
  read(a, {0});
  EXPECT_TRUE(residency_->was_read(0, 0, block(a, 0)));
  residency_->begin_layer(0);
  hint(a, {0});
  EXPECT_TRUE(residency_->was_read(0, 0, block(a, 0))) << "and does not undo one";
}

TEST_F(ResidencyPrefetch, TheAutomaticCapIsAShareOfWhatTheLinkMovesInAStep) {
  make(300);
  residency_->set_fetch_cap(0);
  const int a = open(300);
  evict_all();
  EXPECT_EQ(residency_->fetch_cap(), bytes(256)) << "nothing is known yet";
  Blocks all;
  for (int i = 0; i < 300; ++i) {
    all.push_back(i);
  }
  // 300 blocks in 10 ms, in a step of 40 ms.
  tier_->holds_reads = true;
  tier_->is_silent = true;
  residency_->begin_step();
  residency_->end_step();
  residency_->set_fetch_cap(bytes(300));
  residency_->begin_step();
  hint(a, all);
  residency_->prefetch();
  clock_.advance(std::chrono::milliseconds(10));
  tier_->let_go();
  residency_->begin_layer(0);
  clock_.advance(std::chrono::milliseconds(30));
  residency_->end_step();
  residency_->set_fetch_cap(0);
  EXPECT_NEAR(static_cast<double>(residency_->fetch_cap()),
              static_cast<double>(bytes(300)) * 4 * 0.8, static_cast<double>(bytes(1)));
}

}  // namespace
}  // namespace karez::test
