// What every tier must do, over every tier there is, and over a queue above faulty ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "support/tier/fast_memory.h"
#include "support/tier/tier_cases.h"

namespace karez::test {
namespace {

constexpr std::size_t kBlockBytes = 4096;

class TierConformance : public testing::TestWithParam<TierCase> {
 protected:
  void make(std::size_t block_bytes, int num_extents) {
    under_test_ = GetParam().make(block_bytes, num_extents);
    tier_ = under_test_.tier.get();
  }

  // Slot first_slot + i for block first_block + i.
  Transfer transfer(TransferDirection direction, ExtentId extent, int first_block, int num_blocks,
                    FastMemory& memory, int first_slot) {
    Transfer made;
    made.id = ++last_id_;
    made.direction = direction;
    made.extent = extent;
    made.first_block = first_block;
    made.num_blocks = num_blocks;
    for (int i = 0; i < num_blocks; ++i) {
      made.memory[static_cast<std::size_t>(i)] = memory.slot(first_slot + i);
    }
    made.identity = {.owner = last_id_ * 7,
                     .epoch = 3,
                     .layer = static_cast<std::uint32_t>(first_slot),
                     .head = 1,
                     .block = static_cast<std::uint32_t>(first_block)};
    return made;
  }
  TransferStatus run(const Transfer& one) { return run_transfers(under_test_, {one})[0].status; }

  // Again and again while it fails for the faults of the case; those that have none must not fail.
  void run_until_ok(Transfer one) {
    for (int attempt = 0; attempt < 50; ++attempt) {
      if (run(one) == TransferStatus::kOk) {
        return;
      }
      ASSERT_TRUE(GetParam().has_faults);
      one.id = ++last_id_;
    }
    // Slower than its deadline every time.
    ASSERT_TRUE(GetParam().has_faults);
    never_in_time_ = true;
  }
  ExtentId allocate() {
    const std::optional<ExtentId> extent = tier_->allocate_extent();
    EXPECT_TRUE(extent.has_value());
    return extent.value_or(ExtentId());
  }

  TierUnderTest under_test_;
  Tier* tier_ = nullptr;
  std::uint64_t last_id_ = 0;
  bool never_in_time_ = false;
};

TEST_P(TierConformance, ReadsGiveTheBytesOfTheWrite) {
  // Whole sectors or not, memory aligned to a page or to a cache line only.
  for (const std::size_t block_bytes : {std::size_t{4096}, std::size_t{2176}, std::size_t{8192}}) {
    for (const std::size_t offset : {0, 64}) {
      make(block_bytes, 4);
      FastMemory memory(block_bytes, 8, offset);
      const ExtentId extent = allocate();
      for (int slot = 0; slot < 4; ++slot) {
        memory.fill(slot, static_cast<std::uint64_t>(slot) + 1);
      }
      run_until_ok(transfer(TransferDirection::kWrite, extent, 0, 4, memory, 0));
      run_until_ok(transfer(TransferDirection::kRead, extent, 0, 4, memory, 4));
      for (int slot = 0; slot < 8; ++slot) {
        EXPECT_TRUE(memory.guards_are_whole(slot)) << block_bytes << " " << offset << " " << slot;
        EXPECT_TRUE(never_in_time_ || memory.holds(slot, static_cast<std::uint64_t>(slot) % 4 + 1))
            << block_bytes << " " << offset << " " << slot;
      }
    }
  }
}

TEST_P(TierConformance, BlocksOfAnExtentAreWrittenAndReadAlone) {
  make(kBlockBytes, 4);
  FastMemory memory(kBlockBytes, 8);
  const ExtentId extent = allocate();
  for (int block = 3; block >= 0; --block) {
    memory.fill(block, static_cast<std::uint64_t>(block) + 10);
    run_until_ok(transfer(TransferDirection::kWrite, extent, block, 1, memory, block));
  }
  run_until_ok(transfer(TransferDirection::kRead, extent, 2, 1, memory, 4));
  EXPECT_TRUE(never_in_time_ || memory.holds(4, 12));
  run_until_ok(transfer(TransferDirection::kRead, extent, 1, 3, memory, 5));
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(never_in_time_ || memory.holds(5 + i, static_cast<std::uint64_t>(i) + 11));
  }
}

TEST_P(TierConformance, ABlockThatWasNeverWrittenCannotBeRead) {
  make(kBlockBytes, 2);
  FastMemory memory(kBlockBytes, 8);
  const ExtentId extent = allocate();
  EXPECT_NE(run(transfer(TransferDirection::kRead, extent, 0, 1, memory, 0)), TransferStatus::kOk);
  run_until_ok(transfer(TransferDirection::kWrite, extent, 1, 2, memory, 0));
  EXPECT_NE(run(transfer(TransferDirection::kRead, extent, 0, 4, memory, 4)), TransferStatus::kOk);
  EXPECT_NE(run(transfer(TransferDirection::kRead, extent, 3, 1, memory, 4)), TransferStatus::kOk);
}

TEST_P(TierConformance, AFreedExtentHasForgottenItsContent) {
  make(kBlockBytes, 1);
  FastMemory memory(kBlockBytes, 4);
  run_until_ok(transfer(TransferDirection::kWrite, allocate(), 0, 4, memory, 0));
  tier_->free_extent(ExtentId(0));
  EXPECT_NE(run(transfer(TransferDirection::kRead, allocate(), 0, 1, memory, 0)),
            TransferStatus::kOk);
}

TEST_P(TierConformance, CapacityIsWhatWasAskedForAndFullIsAValue) {
  make(kBlockBytes, 5);
  std::set<ExtentId> extents;
  while (const std::optional<ExtentId> extent = tier_->allocate_extent()) {
    EXPECT_TRUE(extents.insert(*extent).second) << "owned twice";
  }
  EXPECT_EQ(extents.size(), 5U);
  EXPECT_EQ(tier_->capacity().num_extents, 5);
  EXPECT_EQ(tier_->capacity().free_extents, 0);
  EXPECT_EQ(tier_->capacity().used_bytes(), tier_->capacity().capacity_bytes());
  EXPECT_GE(tier_->capacity().extent_bytes, static_cast<std::int64_t>(kBlockBytes) * kExtentBlocks);
  tier_->free_extent(ExtentId(3));
  EXPECT_EQ(tier_->capacity().free_extents, 1);
  EXPECT_EQ(tier_->allocate_extent(), ExtentId(3));
  EXPECT_EQ(tier_->allocate_extent(), std::nullopt);
}

TEST_P(TierConformance, AFreedExtentIsNotOverwrittenUnderAReadInFlight) {
  make(kBlockBytes, 1);
  FastMemory memory(kBlockBytes, 3);
  memory.fill(0, 1);
  memory.fill(2, 3);  // a read that moves nothing is seen
  const ExtentId extent = allocate();
  run_until_ok(transfer(TransferDirection::kWrite, extent, 0, 1, memory, 0));
  const Transfer read = transfer(TransferDirection::kRead, extent, 0, 1, memory, 2);
  ASSERT_EQ(tier_->submit({&read, 1}), 1U);
  tier_->free_extent(extent);
  std::vector<TransferResult> results;
  std::optional<ExtentId> again = tier_->allocate_extent();
  memory.fill(1, 2);
  if (again) {
    const Transfer write = transfer(TransferDirection::kWrite, *again, 0, 1, memory, 1);
    ASSERT_EQ(tier_->submit({&write, 1}), 1U);
  }
  while (results.size() < (again ? 2U : 1U)) {
    wait_for_results(under_test_, results);
  }
  for (const TransferResult& result : results) {
    if (result.ok() && result.transfer.id == read.id) {
      EXPECT_TRUE(memory.holds(2, 1));
    }
    // What is still queued when its extent is freed is cancelled.
    EXPECT_TRUE(result.ok() || GetParam().has_faults || result.status == TransferStatus::kCancelled)
        << to_string(result.status);
  }
  EXPECT_EQ(again ? again : tier_->allocate_extent(), extent);
}

TEST_P(TierConformance, EveryTransferHasOneResultThatSaysWhatItWas) {
  constexpr int kNumExtents = 64;
  make(kBlockBytes, kNumExtents);
  FastMemory memory(kBlockBytes, 4 * kNumExtents);
  std::map<std::uint64_t, Transfer> submitted;
  std::vector<Transfer> transfers;
  for (int i = 0; i < kNumExtents; ++i) {
    transfers.push_back(
        transfer(TransferDirection::kWrite, allocate(), i % 3, i % 2 + 1, memory, 4 * i));
    submitted[transfers.back().id] = transfers.back();
  }
  for (const TransferResult& result : run_transfers(under_test_, transfers)) {
    const auto found = submitted.find(result.transfer.id);
    ASSERT_NE(found, submitted.end()) << "reported twice, or never submitted";
    EXPECT_EQ(result.transfer.identity, found->second.identity);
    EXPECT_EQ(result.transfer.extent, found->second.extent);
    EXPECT_EQ(result.transfer.first_block, found->second.first_block);
    EXPECT_EQ(result.transfer.memory, found->second.memory);
    EXPECT_TRUE(result.ok() || GetParam().has_faults) << to_string(result.status);
    submitted.erase(found);
  }
  EXPECT_TRUE(submitted.empty());
  EXPECT_EQ(tier_->capacity().in_flight, 0);
}

TEST_P(TierConformance, TakesNoMoreInFlightThanItSays) {
  make(kBlockBytes, 64);
  FastMemory memory(kBlockBytes, 64);
  std::vector<Transfer> transfers;
  for (int i = 0; i < 64; ++i) {
    transfers.push_back(transfer(TransferDirection::kWrite, allocate(), 0, 1, memory, i));
  }
  const std::size_t num_taken = tier_->submit(transfers);
  const TierCapacity capacity = tier_->capacity();
  EXPECT_EQ(num_taken, static_cast<std::size_t>(capacity.max_in_flight));
  EXPECT_EQ(capacity.in_flight, capacity.max_in_flight);
  EXPECT_EQ(tier_->submit(transfers), 0U);
  std::vector<TransferResult> results;
  while (results.size() < num_taken) {
    wait_for_results(under_test_, results);
  }
  EXPECT_EQ(tier_->capacity().in_flight, 0);
}

TEST_P(TierConformance, ABlockWithAWriteInFlightIsNotReadOrWrittenBesides) {
  make(kBlockBytes, 1);
  FastMemory memory(kBlockBytes, 4);
  memory.fill(0, 1);
  memory.fill(1, 2);
  const ExtentId extent = allocate();
  // Either the second waits its turn, or it is a conflict; never a mixture of both blocks.
  const std::vector<TransferResult> writes =
      run_transfers(under_test_, {transfer(TransferDirection::kWrite, extent, 0, 1, memory, 0),
                                  transfer(TransferDirection::kWrite, extent, 0, 1, memory, 1)});
  const TransferStatus read = run(transfer(TransferDirection::kRead, extent, 0, 1, memory, 2));
  if (!GetParam().has_faults) {
    EXPECT_GE(std::ranges::count_if(writes, &TransferResult::ok), 1);
    EXPECT_EQ(read, TransferStatus::kOk);
  }
  if (read == TransferStatus::kOk) {
    EXPECT_TRUE(memory.holds(2, 1) || memory.holds(2, 2));
  }
}

TEST_P(TierConformance, SaysWhatItIs) {
  make(kBlockBytes, 1);
  EXPECT_FALSE(tier_->describe().empty());
  EXPECT_EQ(tier_->block_bytes(), kBlockBytes);
}

INSTANTIATE_TEST_SUITE_P(Tiers, TierConformance, testing::ValuesIn(tier_cases()),
                         [](const testing::TestParamInfo<TierCase>& param) {
                           return param.param.name;
                         });

}  // namespace
}  // namespace karez::test
