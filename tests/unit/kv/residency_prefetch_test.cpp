#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "kv/kv_cache_manager.h"
#include "kv/residency.h"
#include "kv/tier/host_tier.h"
#include "support/tier/fake_clock.h"
#include "support/tier/held_tier.h"

namespace karez::test {
namespace {

using Blocks = std::vector<int>;

// Sequences of full blocks with content of their own, in a store with one KV head.
class ResidencyPrefetch : public testing::Test {
 protected:
  ResidencyPrefetch() { make(8); }

  // num_slots: without the spare one.
  void make(std::int64_t num_slots, int num_layers = 1, int max_in_flight = 1024) {
    kv_.reset();
    sequences_.clear();
    spec_ = {};
    spec_.num_layers = num_layers;
    spec_.num_kv_heads = 1;
    spec_.head_dim = 16;
    auto tier = std::make_unique<HeldTier>(
        HostTier::create({.block_bytes = spec_.slot_bytes(),
                          .capacity_bytes = 400 * static_cast<std::int64_t>(spec_.slot_bytes()),
                          .num_workers = 0,
                          .max_in_flight = max_in_flight})
            .value(),
        clock_);
    tier_ = tier.get();
    kv_ = KVCacheManager::create(spec_,
                                 (num_slots + 1) * static_cast<std::int64_t>(spec_.slot_bytes()),
                                 std::move(tier), clock_)
              .value();
    residency_ = kv_->residency();
    residency_->set_fetch_cap(bytes(1000));
  }
  ~ResidencyPrefetch() override {
    if (HasFatalFailure()) {
      return;
    }
    EXPECT_EQ(kv_->check_invariants(), "");
    while (!sequences_.empty()) {
      close(0);
    }
    tier_->is_silent = false;
    tier_->let_go();
    residency_->settle();
    residency_->advance();
    EXPECT_EQ(kv_->check_invariants(), "");
    EXPECT_EQ(residency_->num_loose_slots(), 1) << "a slot was lost";
    EXPECT_EQ(residency_->stats().home_bytes_used, 0);
    const PrefetchStats stats = prefetch_stats();
    const PrefetchStats::BySource total = stats.total();
    EXPECT_EQ(total.predicted,
              stats.already_resident + stats.already_hinted + total.fetched + stats.dropped);
    EXPECT_EQ(total.fetched, total.useful + total.late + total.wasted + stats.failed);
    EXPECT_EQ(stats.bytes_fetched, bytes(total.fetched));
    EXPECT_EQ(stats.bytes_wasted, bytes(total.wasted));
  }

  std::int64_t bytes(std::int64_t blocks) const {
    return blocks * static_cast<std::int64_t>(spec_.slot_bytes());
  }
  PrefetchStats prefetch_stats() const { return residency_->stats().prefetch; }
  PrefetchStats::BySource of(LookaheadSource source) const { return prefetch_stats().of(source); }

  // Written, and at home too.
  int open(int num_blocks) {
    const int index = static_cast<int>(sequences_.size());
    sequences_.push_back(kv_->open());
    EXPECT_TRUE(kv_->extend(sequences_.back(), num_blocks * kBlockSize));
    for (int layer = 0; layer < spec_.num_layers; ++layer) {
      for (int i = 0; i < num_blocks; ++i) {
        std::memset(place(index, i, layer), content(index, i, layer), spec_.slot_bytes());
      }
    }
    kv_->write_home(sequences_.back());
    residency_->advance();
    if (!tier_->holds_writes) {
      residency_->settle();
    }
    return index;
  }
  void close(int index) {
    kv_->close(sequences_[static_cast<std::size_t>(index)]);
    sequences_.erase(sequences_.begin() + index);
  }

  BlockId block(int sequence, int i) const {
    return kv_->table(sequences_[static_cast<std::size_t>(sequence)],
                      0)[static_cast<std::size_t>(i)];
  }
  std::byte* place(int sequence, int i, int layer) const {
    return kv_->layer(layer).slot(0, block(sequence, i));
  }
  static unsigned char content(int sequence, int i, int layer) {
    return static_cast<unsigned char>(sequence * 100 + i * 3 + layer + 1);
  }
  bool is_resident(int sequence, int i, int layer = 0) const {
    return !kv_->layer(layer).slots_of_head(0)[block(sequence, i).value].is_none();
  }
  Blocks resident(int sequence, int num_blocks, int layer = 0) const {
    Blocks found;
    for (int i = 0; i < num_blocks; ++i) {
      if (is_resident(sequence, i, layer)) {
        found.push_back(i);
      }
    }
    return found;
  }

  // A layer of a step; whether all it needs was there in the end, with the right content.
  bool read(int sequence, const Blocks& blocks, int layer = 0) {
    residency_->begin_layer(layer);
    for (const int i : blocks) {
      residency_->need(0, block(sequence, i));
    }
    if (!residency_->load().empty()) {
      return false;
    }
    for (const int i : blocks) {
      const std::byte* bytes = place(sequence, i, layer);
      const auto expected = static_cast<std::byte>(content(sequence, i, layer));
      EXPECT_TRUE(std::all_of(bytes, bytes + spec_.slot_bytes(),
                              [expected](std::byte seen) { return seen == expected; }))
          << "block " << i << " layer " << layer;
    }
    return true;
  }
  void step(int sequence, const Blocks& blocks) {
    residency_->begin_step();
    for (int layer = 0; layer < spec_.num_layers; ++layer) {
      EXPECT_TRUE(read(sequence, blocks, layer));
    }
    residency_->end_step();
  }
  void hint(int sequence, const Blocks& blocks, int layer = 0,
            LookaheadSource source = LookaheadSource::kPrevious) {
    for (const int i : blocks) {
      residency_->hint(layer, 0, block(sequence, i), source);
    }
  }
  // So that nothing of it is in the fast tier, and all of the rest of the pool is free.
  void evict_all() {
    const int other = open(static_cast<int>(kv_->stats().slots_total - 1) / spec_.num_layers);
    close(other);
  }

  FakeClock clock_;
  KVCacheSpec spec_;
  HeldTier* tier_ = nullptr;
  std::unique_ptr<KVCacheManager> kv_;
  Residency* residency_ = nullptr;
  std::vector<SequenceId> sequences_;
};

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

TEST_F(ResidencyPrefetch, TakesTheSlotsOfBlocksThatThisStepDoesNotNeed) {
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

TEST_F(ResidencyPrefetch, OldestGoFirst) {
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

TEST_F(ResidencyPrefetch, WhatWasFetchedOrHintedWaitsForItsLayerBeforeItGoes) {
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

TEST_F(ResidencyPrefetch, RowsOfOtherLayersKeepWhatTheLastStepNeeded) {
  make(16, 2);
  const int a = open(8);
  const int b = open(2);
  step(a, {0, 1, 2, 3, 4, 5, 6, 7});
  // All of layer 1 is needed, little of layer 0.
  residency_->begin_step();
  read(a, {0}, 0);
  read(a, {0, 1, 2, 3, 4, 5, 6, 7}, 1);
  residency_->end_step();
  residency_->begin_step();
  read(a, {0}, 0);
  const Blocks before = resident(a, 8, 1);
  hint(b, {0, 1}, 0);
  residency_->prefetch();
  residency_->begin_layer(1);
  EXPECT_EQ(resident(a, 8, 1), before);
  EXPECT_EQ(resident(b, 2, 0), (Blocks{0, 1}));
}

TEST_F(ResidencyPrefetch, ALoadTakesTheSlotsOfPrefetches) {
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

TEST_F(ResidencyPrefetch, ALoadThatIsPartlyUnderWayTakesTheSlotsOfTheRest) {
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

TEST_F(ResidencyPrefetch, SlotsOfPrefetchesAreRoomForNewBlocks) {
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

// In the same load the writes that it waited for are victims.
TEST_F(ResidencyPrefetch, ALoadTakesTheSlotsOfWritesThatItWaitedFor) {
  const int a = open(4);
  evict_all();
  tier_->holds_writes = true;
  open(8);
  EXPECT_TRUE(read(a, {0, 1, 2, 3}));
  EXPECT_EQ(residency_->stats().blocks_lost, 0);
}

}  // namespace
}  // namespace karez::test
