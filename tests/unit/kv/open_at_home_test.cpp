// Sequences whose blocks were computed elsewhere: at home alone, in extents that are full already.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <tuple>
#include <vector>

#include "support/tier/fast_memory.h"
#include "support/tier/residency_fixture.h"

namespace karez::test {
namespace open_at_home_test {

class OpenAtHome : public ResidencyFixture {
 protected:
  // An extent of the tier with the content of blocks [first, first + 4) of sequence 0.
  ExtentId extent(int layer, std::int64_t first) {
    const ExtentId extent = tier_->allocate_extent().value();
    FastMemory memory(spec_.slot_bytes(), kExtentBlocks);
    Transfer transfer;
    transfer.direction = TransferDirection::kWrite;
    transfer.extent = extent;
    transfer.num_blocks = kExtentBlocks;
    for (int i = 0; i < kExtentBlocks; ++i) {
      transfer.memory[static_cast<std::size_t>(i)] = memory.slot(i);
      std::memset(memory.slot(i), content(0, static_cast<int>(first) + i, layer),
                  spec_.slot_bytes());
    }
    EXPECT_EQ(tier_->submit(std::span(&transfer, 1)), 1U);
    std::vector<TransferResult> results;
    tier_->poll(results);
    EXPECT_TRUE(results.size() == 1 && results[0].ok());
    return extent;
  }
  bool open_foreign(int num_blocks) {
    const auto opened = kv_->open_at_home(
        num_blocks * kBlockSize,
        [this](int layer, int, std::int64_t first) { return extent(layer, first); });
    if (opened) {
      sequences_.push_back(*opened);
    }
    return opened.has_value();
  }
};

TEST_F(OpenAtHome, TakesNoSlotsAndIsReadOnDemand) {
  make(12, 2);
  ASSERT_TRUE(open_foreign(8));
  EXPECT_EQ(kv_->check_invariants(), "");
  EXPECT_EQ(kv_->stats().slots_used, 0);
  EXPECT_EQ(kv_->num_tokens(sequences_[0]), 128);
  EXPECT_EQ(resident(0, 8), Blocks{});
  step(0, {0, 3, 7});  // looks at the content
  EXPECT_EQ(resident(0, 8), (Blocks{0, 3, 7}));
  step(0, {1, 2, 4, 5, 6});
}

// One round trip to a peer for a layer, whoever needs what.
TEST_F(OpenAtHome, WhatSeveralSequencesLackInALayerReachesTheTierInOneCall) {
  make(48, 2);
  for (int sequence = 0; sequence < 3; ++sequence) {
    ASSERT_TRUE(open_foreign(8));
  }
  tier_->holds_reads = true;  // until somebody waits
  residency_->begin_step();
  for (int layer = 0; layer < 2; ++layer) {
    residency_->begin_layer(layer);
    for (int sequence = 0; sequence < 3; ++sequence) {
      for (const int i : {0, 3, 6}) {  // no two of them are neighbours
        EXPECT_TRUE(residency_->need(0, block(sequence, i)));
      }
    }
    EXPECT_TRUE(residency_->load().empty());
  }
  residency_->end_step();
  EXPECT_EQ(tier_->reads_of_calls, (std::vector<int>{9, 9}));
}

TEST_F(OpenAtHome, GrowsIntoSlotsAndNothingOfItIsWrittenHomeAgain) {
  ASSERT_TRUE(open_foreign(4));
  ASSERT_TRUE(kv_->extend(sequences_[0], 17));
  const std::int64_t before = residency_->stats().bytes_written;
  std::memset(place(0, 4, 0), content(0, 4, 0), spec_.slot_bytes());
  kv_->write_home(sequences_[0]);
  residency_->advance();
  residency_->settle();
  EXPECT_EQ(residency_->stats().bytes_written - before, bytes(1)) << "the new full block alone";
  step(0, {0, 1, 2, 3, 4});
}

TEST_F(OpenAtHome, OthersKeepItsBlocksAndTheirExtents) {
  ASSERT_TRUE(open_foreign(8));
  sequences_.push_back(kv_->fork(sequences_[0], 64).value());
  close(0);
  EXPECT_EQ(kv_->check_invariants(), "");
  step(0, {0, 1, 2, 3});
  EXPECT_EQ(residency_->stats().home_bytes_used, bytes(4));
}

TEST_F(OpenAtHome, SaysNoneAndTakesNothingWhereBlocksRunOut) {
  make(8);
  const std::int64_t all = static_cast<std::int64_t>(kv_->num_block_ids(0));
  std::int64_t asked = 0;
  const auto opened = kv_->open_at_home(static_cast<int>(all / 4 * 4 + 4) * kBlockSize,
                                        [&](int, int, std::int64_t) {
                                          ++asked;
                                          return ExtentId(0);
                                        });
  EXPECT_FALSE(opened.has_value());
  EXPECT_EQ(asked, 0);
  EXPECT_EQ(kv_->check_invariants(), "");
  EXPECT_TRUE(open_foreign(8));
}

TEST_F(OpenAtHome, PlacesOfBlocksAtHomeAreThoseThatWereGiven) {
  std::map<std::int64_t, ExtentId> given;
  sequences_.push_back(kv_->open_at_home(8 * kBlockSize,
                                         [&](int layer, int, std::int64_t first) {
                                           return given[first] = extent(layer, first);
                                         })
                           .value());
  for (int i = 0; i < 8; ++i) {
    const auto place = residency_->place_at_home(0, 0, block(0, i));
    ASSERT_TRUE(place.has_value());
    EXPECT_EQ(place->extent, given[i / 4 * 4]);
    EXPECT_EQ(place->index, i % 4);
  }
  const int own = open(2);
  EXPECT_TRUE(residency_->place_at_home(0, 0, block(own, 1)).has_value()) << "written home";
  ASSERT_TRUE(kv_->extend(sequences_[1], 16));
  EXPECT_FALSE(residency_->place_at_home(0, 0, block(own, 2)).has_value());
}

}  // namespace open_at_home_test
}  // namespace karez::test
