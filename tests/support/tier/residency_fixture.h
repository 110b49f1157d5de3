// A store with one KV head over a tier whose reads the test holds back: full blocks with content of
// their own, at home and wherever else the test wants them.
//
// At the end it closes all, and looks whether a slot was lost and whether the counts add up.
// Thread: one.
#pragma once

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

using Blocks = std::vector<int>;

class ResidencyFixture : public testing::Test {
 protected:
  ResidencyFixture() { make(8); }

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
  ~ResidencyFixture() override {
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

}  // namespace karez::test
