// Random operations on every tier, against a model that knows which bytes a block may hold.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <set>

#include "support/tier/fast_memory.h"
#include "support/tier/tier_cases.h"

namespace karez::test {
namespace {

using Seeds = std::set<std::uint64_t>;

// What a block of an allocated extent may hold. One seed and certain: that one, and a read must
// succeed if nothing else goes wrong.
struct HomeBlock {
  Seeds seeds;
  bool is_certain = false;
  int writes_in_flight = 0;
  bool writes_overlap = false;
};
struct HomeExtent {
  std::uint64_t allocation = 0;  // which one: ids are used again
  std::array<HomeBlock, kExtentBlocks> blocks = {};
};

struct Pending {
  Transfer transfer;
  std::uint64_t allocation = 0;
  std::vector<int> slots;
  std::uint64_t seed = 0;            // of a write's first block; the next ones count up
  std::vector<Seeds> may_give = {};  // of a read, for each block
  bool must_succeed = false;
};

class RandomRun {
 public:
  RandomRun(const TierCase& test_case, std::uint64_t seed)
      : case_(test_case),
        random_(seed),
        num_extents_(pick(1, 12)),
        memory_(kBlockBytes, kNumSlots, pick(0, 1) == 0 ? 0 : 64),
        under_test_(test_case.make(kBlockBytes, num_extents_)),
        tier_(*under_test_.tier) {
    for (int slot = 0; slot < kNumSlots; ++slot) {
      free_slots_.push_back(slot);
    }
  }

  void step() {
    switch (pick(0, 8)) {
      case 0:
        allocate();
        break;
      case 1:
        if (pick(0, 3) == 0) {
          free_one();
        }
        break;
      case 2:
      case 3:
        poll();
        break;
      case 4:
        tier_.wait_until(under_test_.clock->now() + std::chrono::microseconds(pick(0, 3000)));
        break;
      default:
        submit();
    }
    check_capacity();
  }

  void finish() {
    while (!pending_.empty()) {
      std::vector<TransferResult> results;
      wait_for_results(under_test_, results);
      take(results);
    }
    EXPECT_EQ(tier_.capacity().in_flight, 0);
    while (!home_.empty()) {
      tier_.free_extent(home_.begin()->first);
      home_.erase(home_.begin());
    }
    EXPECT_EQ(tier_.capacity().free_extents, num_extents_);
    EXPECT_EQ(free_slots_.size(), static_cast<std::size_t>(kNumSlots));
  }
  int num_ok_reads() const { return num_ok_reads_; }

 private:
  static constexpr std::size_t kBlockBytes = 640;
  static constexpr int kNumSlots = 64;
  static constexpr int kNumOwners = 3;

  int pick(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }
  ExtentId pick_extent() {
    return std::next(home_.begin(), pick(0, static_cast<int>(home_.size()) - 1))->first;
  }

  void allocate() {
    const std::optional<ExtentId> extent = tier_.allocate_extent();
    if (!extent) {
      // Those that are freed and have something in flight are not to be had.
      std::set<ExtentId> held;
      for (const auto& [id, pending] : pending_) {
        held.insert(pending.transfer.extent);
      }
      for (const auto& [id, extent_held] : home_) {
        held.insert(id);
      }
      EXPECT_EQ(held.size(), static_cast<std::size_t>(num_extents_));
      return;
    }
    const auto [home, is_new] = home_.try_emplace(*extent);
    EXPECT_TRUE(is_new) << "owned twice";
    home->second.allocation = ++last_allocation_;
  }

  void free_one() {
    if (home_.empty()) {
      return;
    }
    const ExtentId extent = pick_extent();
    home_.erase(extent);
    for (auto& [id, pending] : pending_) {
      if (pending.transfer.extent == extent) {
        pending.must_succeed = false;
      }
    }
    tier_.free_extent(extent);
  }

  void submit() {
    if (home_.empty()) {
      return;
    }
    std::vector<Pending> batch;
    for (int i = pick(1, 6); i > 0; --i) {
      Pending made;
      Transfer& transfer = made.transfer;
      transfer.direction = pick(0, 1) == 0 ? TransferDirection::kRead : TransferDirection::kWrite;
      transfer.extent = pick_extent();
      transfer.first_block = pick(0, kExtentBlocks - 1);
      transfer.num_blocks = pick(1, kExtentBlocks - transfer.first_block);
      if (static_cast<int>(free_slots_.size()) < transfer.num_blocks) {
        break;
      }
      transfer.id = ++last_id_;
      transfer.identity.owner = last_id_ % kNumOwners;
      made.seed = last_seed_ + 1;
      last_seed_ += kExtentBlocks;
      for (int b = 0; b < transfer.num_blocks; ++b) {
        const int slot = free_slots_.back();
        free_slots_.pop_back();
        made.slots.push_back(slot);
        memory_.fill(slot, transfer.direction == TransferDirection::kWrite
                               ? made.seed + static_cast<std::uint64_t>(b)
                               : 0);
        transfer.memory[static_cast<std::size_t>(b)] = memory_.slot(slot);
      }
      batch.push_back(made);
    }
    std::vector<Transfer> transfers;
    for (const Pending& made : batch) {
      transfers.push_back(made.transfer);
    }
    const std::size_t num_taken = tier_.submit(transfers);
    ASSERT_LE(num_taken, batch.size());
    for (std::size_t i = 0; i < batch.size(); ++i) {
      if (i < num_taken) {
        note_submitted(std::move(batch[i]));
      } else {
        give_back(batch[i]);
      }
    }
  }

  void note_submitted(Pending made) {
    const Transfer& transfer = made.transfer;
    HomeExtent& extent = home_.at(transfer.extent);
    made.allocation = extent.allocation;
    const bool reads = transfer.direction == TransferDirection::kRead;
    made.must_succeed = !case_.has_faults;
    for (int b = 0; b < transfer.num_blocks; ++b) {
      HomeBlock& block = extent.blocks[static_cast<std::size_t>(transfer.first_block + b)];
      made.must_succeed = made.must_succeed && block.writes_in_flight == 0;
      if (reads) {
        made.must_succeed = made.must_succeed && block.is_certain;
        made.may_give.push_back(block.seeds);
        continue;
      }
      const std::uint64_t seed = made.seed + static_cast<std::uint64_t>(b);
      block.seeds.insert(seed);
      block.is_certain = false;
      block.writes_overlap = block.writes_overlap || block.writes_in_flight > 0;
      ++block.writes_in_flight;
    }
    for (auto& [id, other] : pending_) {
      meet(other, made);
    }
    pending_.emplace(transfer.id, std::move(made));
  }

  // A write that touches a block of another transfer in flight.
  static void meet(Pending& other, Pending& made) {
    if (other.allocation != made.allocation) {
      return;
    }
    const bool other_reads = other.transfer.direction == TransferDirection::kRead;
    const bool reads = made.transfer.direction == TransferDirection::kRead;
    for (int b = 0; b < made.transfer.num_blocks; ++b) {
      const int at = made.transfer.first_block + b - other.transfer.first_block;
      if (at < 0 || at >= other.transfer.num_blocks || (reads && other_reads)) {
        continue;
      }
      made.must_succeed = false;
      other.must_succeed = false;
      if (other_reads) {
        other.may_give[static_cast<std::size_t>(at)].insert(made.seed +
                                                            static_cast<std::uint64_t>(b));
      }
    }
  }

  void poll() {
    std::vector<TransferResult> results;
    tier_.poll(results);
    take(results);
  }

  void take(const std::vector<TransferResult>& results) {
    for (const TransferResult& result : results) {
      const auto found = pending_.find(result.transfer.id);
      ASSERT_NE(found, pending_.end()) << "reported twice, or never submitted";
      Pending pending = std::move(found->second);
      pending_.erase(found);
      EXPECT_EQ(result.transfer.identity, pending.transfer.identity);
      EXPECT_TRUE(result.ok() || !pending.must_succeed) << to_string(result.status);
      if (pending.transfer.direction == TransferDirection::kRead) {
        check_read(pending, result.ok());
      } else {
        note_written(pending, result.ok());
      }
      for (const int slot : pending.slots) {
        EXPECT_TRUE(memory_.guards_are_whole(slot));
      }
      give_back(pending);
    }
  }

  void check_read(const Pending& pending, bool is_ok) {
    if (!is_ok) {
      return;
    }
    ++num_ok_reads_;
    for (std::size_t b = 0; b < pending.slots.size(); ++b) {
      const Seeds& seeds = pending.may_give[b];
      EXPECT_TRUE(std::any_of(seeds.begin(), seeds.end(), [&](std::uint64_t seed) {
        return memory_.holds(pending.slots[b], seed);
      })) << "wrong bytes, and no failure";
    }
  }

  void note_written(const Pending& pending, bool is_ok) {
    const auto home = home_.find(pending.transfer.extent);
    if (home == home_.end() || home->second.allocation != pending.allocation) {
      return;
    }
    for (int b = 0; b < pending.transfer.num_blocks; ++b) {
      HomeBlock& block =
          home->second.blocks[static_cast<std::size_t>(pending.transfer.first_block + b)];
      --block.writes_in_flight;
      if (is_ok && !block.writes_overlap) {
        block.seeds = {pending.seed + static_cast<std::uint64_t>(b)};
        block.is_certain = true;
      }
      block.writes_overlap = block.writes_overlap && block.writes_in_flight > 0;
    }
  }

  void give_back(const Pending& pending) {
    free_slots_.insert(free_slots_.end(), pending.slots.begin(), pending.slots.end());
  }

  void check_capacity() {
    const TierCapacity capacity = tier_.capacity();
    EXPECT_LE(capacity.used_bytes(), capacity.capacity_bytes());
    EXPECT_EQ(capacity.num_extents, num_extents_);
    EXPECT_GE(capacity.num_extents - capacity.free_extents,
              static_cast<std::int64_t>(home_.size()));
    EXPECT_LE(capacity.in_flight, capacity.max_in_flight);
    EXPECT_EQ(capacity.in_flight, static_cast<int>(pending_.size()));
  }

  const TierCase& case_;
  std::mt19937_64 random_;
  int num_extents_;
  FastMemory memory_;
  TierUnderTest under_test_;
  Tier& tier_;
  std::vector<int> free_slots_;
  std::map<ExtentId, HomeExtent> home_;
  std::map<std::uint64_t, Pending> pending_;
  std::uint64_t last_allocation_ = 0;
  std::uint64_t last_id_ = 0;
  std::uint64_t last_seed_ = 0;
  int num_ok_reads_ = 0;
};

class TierProperty : public testing::TestWithParam<TierCase> {};

TEST_P(TierProperty, RandomOperationsMatchTheModel) {
  int num_ok_reads = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    RandomRun run(GetParam(), seed);
    for (int i = 0; i < 300 && !testing::Test::HasFailure(); ++i) {
      run.step();
    }
    run.finish();
    num_ok_reads += run.num_ok_reads();
    ASSERT_FALSE(testing::Test::HasFailure());
  }
  // A tier that fails everything would match too.
  if (GetParam().name != "QueueOverTooSlow") {
    EXPECT_GT(num_ok_reads, 25);
  }
}

INSTANTIATE_TEST_SUITE_P(Tiers, TierProperty, testing::ValuesIn(tier_cases()),
                         [](const testing::TestParamInfo<TierCase>& param) {
                           return param.param.name;
                         });

}  // namespace
}  // namespace karez::test
