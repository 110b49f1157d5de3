#include "kv/tier/transfer_queue.h"

#include <gtest/gtest.h>

#include <deque>

#include "support/tier/fake_clock.h"
#include "support/tier/fast_memory.h"

namespace karez::test {
namespace {

using std::chrono::milliseconds;

// Reports what it is told to, when it is told to.
class ScriptedTier final : public Tier {
 public:
  ScriptedTier(int max_in_flight, const FakeClock& clock)
      : max_in_flight_(max_in_flight), clock_(clock) {}

  std::optional<ExtentId> allocate_extent() override { return ExtentId(next_extent_++); }
  void free_extent(ExtentId extent) override { freed.push_back(extent); }
  std::size_t submit(std::span<const Transfer> transfers) override {
    std::size_t num_taken = 0;
    for (const Transfer& transfer : transfers) {
      if (num_in_flight() == max_in_flight_) {
        break;
      }
      in_flight.push_back(transfer);
      order.push_back(transfer.identity.block);
      ++num_taken;
    }
    return num_taken;
  }
  void poll(std::vector<TransferResult>& results) override {
    results.insert(results.end(), ready.begin(), ready.end());
    ready.clear();
  }
  void wait_until(Clock::TimePoint time) override {
    ++num_waits;
    if (completes_while_waiting && !in_flight.empty()) {
      complete();
    } else {
      clock_.sleep_until(time);
    }
  }
  std::size_t block_bytes() const override { return 4096; }
  TierCapacity capacity() const override {
    return {
        .extent_bytes = 4 * 4096, .max_in_flight = max_in_flight_, .in_flight = num_in_flight()};
  }
  std::string describe() const override { return "scripted"; }

  // The oldest in flight.
  void complete(TransferStatus status = TransferStatus::kOk) {
    ready.push_back({in_flight.front(), status});
    in_flight.pop_front();
  }
  int num_in_flight() const { return static_cast<int>(in_flight.size() + ready.size()); }

  std::deque<Transfer> in_flight;
  std::vector<TransferResult> ready;
  std::vector<std::uint32_t> order;  // identity.block of what was submitted
  std::vector<ExtentId> freed;
  bool completes_while_waiting = false;
  int num_waits = 0;

 private:
  int max_in_flight_;
  const FakeClock& clock_;
  std::uint32_t next_extent_ = 0;
};

class TransferQueueTest : public testing::Test {
 protected:
  explicit TransferQueueTest(int tier_room = 64) {
    auto tier = std::make_unique<ScriptedTier>(tier_room, clock_);
    tier_ = tier.get();
    queue_ = std::make_unique<TransferQueue>(std::move(tier), options_, clock_);
  }
  void remake(const TransferQueueOptions& options, int tier_room = 64) {
    auto tier = std::make_unique<ScriptedTier>(tier_room, clock_);
    tier_ = tier.get();
    queue_ = std::make_unique<TransferQueue>(std::move(tier), options, clock_);
  }

  std::optional<TransferId> submit(std::uint32_t block, TransferPriority priority,
                                   Clock::TimePoint deadline = TransferQueue::kNoDeadline) {
    Transfer transfer;
    transfer.direction = priority == TransferPriority::kWriteBack ? TransferDirection::kWrite
                                                                  : TransferDirection::kRead;
    transfer.extent = ExtentId(block);
    transfer.memory[0] = memory_.slot(0);
    transfer.identity = {.block = block};
    return queue_->submit(transfer, priority, deadline);
  }
  std::vector<TransferResult> poll() {
    std::vector<TransferResult> results;
    queue_->poll(results);
    return results;
  }
  std::vector<Transfer> released() {
    std::vector<Transfer> transfers;
    queue_->take_released(transfers);
    return transfers;
  }

  TransferQueueOptions options_;
  FakeClock clock_;
  FastMemory memory_{4096, 1};
  ScriptedTier* tier_ = nullptr;
  std::unique_ptr<TransferQueue> queue_;
};

TEST_F(TransferQueueTest, DemandGoesBeforePrefetchBeforeWriteBack) {
  submit(1, TransferPriority::kWriteBack);
  submit(2, TransferPriority::kPrefetch);
  submit(3, TransferPriority::kDemand);
  submit(4, TransferPriority::kPrefetch);
  submit(5, TransferPriority::kDemand);
  poll();
  EXPECT_EQ(tier_->order, (std::vector<std::uint32_t>{3, 5, 2, 4, 1}));
}

TEST_F(TransferQueueTest, LowerPrioritiesLeaveRoomInFlightForThoseAbove) {
  options_.max_in_flight = 8;
  remake(options_);
  for (std::uint32_t i = 0; i < 10; ++i) {
    submit(i, TransferPriority::kWriteBack);
  }
  poll();
  EXPECT_EQ(tier_->num_in_flight(), 4);
  for (std::uint32_t i = 10; i < 20; ++i) {
    submit(i, TransferPriority::kPrefetch);
  }
  poll();
  EXPECT_EQ(tier_->num_in_flight(), 6);
  for (std::uint32_t i = 20; i < 30; ++i) {
    submit(i, TransferPriority::kDemand);
  }
  poll();
  EXPECT_EQ(tier_->num_in_flight(), 8);
  EXPECT_EQ(queue_->counters().in_flight, 8);
  EXPECT_EQ(queue_->counters().by_priority[0].queued, 8);
}

TEST_F(TransferQueueTest, WhatTheTierDoesNotTakeKeepsItsPlace) {
  remake(options_, 2);
  for (std::uint32_t i = 0; i < 5; ++i) {
    submit(i, TransferPriority::kDemand);
  }
  for (int i = 0; i < 5; ++i) {
    poll();
    tier_->complete();
  }
  EXPECT_EQ(poll().size(), 1U);
  EXPECT_EQ(tier_->order, (std::vector<std::uint32_t>{0, 1, 2, 3, 4}));
}

TEST_F(TransferQueueTest, AFullQueueSaysNoForThatPriorityOnly) {
  options_.max_queued = 2;
  remake(options_);
  EXPECT_TRUE(submit(1, TransferPriority::kPrefetch));
  EXPECT_TRUE(submit(2, TransferPriority::kPrefetch));
  EXPECT_FALSE(submit(3, TransferPriority::kPrefetch));
  EXPECT_TRUE(submit(4, TransferPriority::kDemand));
  EXPECT_EQ(queue_->counters().by_priority[1].refused, 1);
  poll();
  EXPECT_TRUE(submit(5, TransferPriority::kPrefetch));
}

TEST_F(TransferQueueTest, APromotedTransferGoesWithTheDemands) {
  options_.max_in_flight = 1;
  remake(options_);
  submit(0, TransferPriority::kDemand);
  poll();
  submit(1, TransferPriority::kPrefetch);
  const TransferId late = *submit(2, TransferPriority::kPrefetch);
  const TransferId write = *submit(3, TransferPriority::kWriteBack);
  submit(4, TransferPriority::kDemand);
  EXPECT_TRUE(queue_->promote(late));
  EXPECT_TRUE(queue_->promote(write));
  EXPECT_FALSE(queue_->promote(late)) << "it is one already";
  EXPECT_EQ(queue_->counters().by_priority[0].queued, 3);
  EXPECT_EQ(queue_->counters().by_priority[1].queued, 1);
  EXPECT_EQ(queue_->counters().by_priority[2].queued, 0);
  for (int i = 0; i < 5; ++i) {
    tier_->complete();
    EXPECT_EQ(poll().size(), 1U);
  }
  EXPECT_EQ(tier_->order, (std::vector<std::uint32_t>{0, 4, 2, 3, 1})) << "each once";
  EXPECT_EQ(queue_->counters().by_priority[0].results, 4);
  EXPECT_EQ(queue_->counters().by_priority[0].queued, 0);
}

TEST_F(TransferQueueTest, OnlyWhatWaitsIsPromoted) {
  const TransferId id = *submit(1, TransferPriority::kPrefetch);
  poll();
  EXPECT_FALSE(queue_->promote(id)) << "in flight";
  tier_->complete();
  EXPECT_EQ(poll().size(), 1U);
  EXPECT_FALSE(queue_->promote(id)) << "gone";
}

TEST_F(TransferQueueTest, APromotedTransferIsCancelledOnce) {
  options_.max_in_flight = 1;
  remake(options_);
  submit(1, TransferPriority::kDemand);
  poll();
  EXPECT_TRUE(queue_->promote(*submit(2, TransferPriority::kPrefetch)));
  submit(3, TransferPriority::kPrefetch);  // in the queue that the promoted one was in
  queue_->free_extent(ExtentId(2));
  EXPECT_EQ(poll().size(), 1U);
  tier_->complete();
  EXPECT_EQ(poll().size(), 1U);
  EXPECT_EQ(tier_->order, (std::vector<std::uint32_t>{1, 3}));
  EXPECT_EQ(queue_->counters().by_priority[0].queued, 0);
  EXPECT_EQ(queue_->counters().by_priority[1].queued, 0);
}

TEST_F(TransferQueueTest, UntakenResultsHoldBackNewTransfers) {
  options_.max_results = 2;
  remake(options_);
  const std::array ids = {*submit(1, TransferPriority::kDemand),
                          *submit(2, TransferPriority::kDemand)};
  tier_->completes_while_waiting = true;
  ASSERT_TRUE(queue_->wait_for(ids, clock_.now() + milliseconds(1)));
  EXPECT_FALSE(submit(3, TransferPriority::kDemand));
  EXPECT_EQ(poll().size(), 2U);
  EXPECT_TRUE(submit(3, TransferPriority::kDemand));
}

TEST_F(TransferQueueTest, ResultsCarryTheIdAndTheStatusOfTheTier) {
  const TransferId id = *submit(1, TransferPriority::kDemand);
  EXPECT_TRUE(poll().empty());
  tier_->complete(TransferStatus::kChecksumMismatch);
  const std::vector<TransferResult> results = poll();
  ASSERT_EQ(results.size(), 1U);
  EXPECT_EQ(results[0].transfer.id, id);
  EXPECT_EQ(results[0].status, TransferStatus::kChecksumMismatch);
  EXPECT_FALSE(results[0].memory_in_use);
  EXPECT_TRUE(poll().empty());
}

TEST_F(TransferQueueTest, PastItsDeadlineATransferHasFailedButKeepsItsMemory) {
  submit(1, TransferPriority::kDemand, clock_.now() + milliseconds(5));
  EXPECT_TRUE(poll().empty());
  clock_.advance(milliseconds(5));
  const std::vector<TransferResult> results = poll();
  ASSERT_EQ(results.size(), 1U);
  EXPECT_EQ(results[0].status, TransferStatus::kDeadlinePassed);
  EXPECT_TRUE(results[0].memory_in_use);
  EXPECT_TRUE(released().empty());
  EXPECT_EQ(queue_->counters().in_flight, 1);
  tier_->complete();
  EXPECT_TRUE(poll().empty()) << "a result comes once";
  ASSERT_EQ(released().size(), 1U);
  EXPECT_TRUE(released().empty());
  EXPECT_EQ(queue_->counters().late, 1);
  EXPECT_EQ(queue_->counters().by_priority[0].bytes_read, 0);
}

TEST_F(TransferQueueTest, ALateReportBeforeTheResultIsTakenFreesTheMemoryAtOnce) {
  const TransferId id = *submit(1, TransferPriority::kDemand, clock_.now() + milliseconds(5));
  EXPECT_TRUE(queue_->wait_for({&id, 1}, clock_.now() + milliseconds(50)));
  tier_->complete();
  const std::vector<TransferResult> results = poll();
  ASSERT_EQ(results.size(), 1U);
  EXPECT_EQ(results[0].status, TransferStatus::kDeadlinePassed);
  EXPECT_FALSE(results[0].memory_in_use);
  EXPECT_TRUE(released().empty());
}

TEST_F(TransferQueueTest, ADeadlinePassesInTheQueueToo) {
  options_.max_in_flight = 1;
  remake(options_);
  submit(1, TransferPriority::kDemand);
  poll();
  submit(2, TransferPriority::kPrefetch, clock_.now() + milliseconds(5));
  submit(3, TransferPriority::kPrefetch, clock_.now() + milliseconds(9));
  clock_.advance(milliseconds(6));
  std::vector<TransferResult> results = poll();
  ASSERT_EQ(results.size(), 1U);
  EXPECT_EQ(results[0].transfer.identity.block, 2U);
  EXPECT_EQ(results[0].status, TransferStatus::kDeadlinePassed);
  EXPECT_FALSE(results[0].memory_in_use);
  clock_.advance(milliseconds(6));
  EXPECT_EQ(poll().size(), 1U);
  tier_->complete();
  poll();
  EXPECT_EQ(tier_->order, (std::vector<std::uint32_t>{1}));
}

TEST_F(TransferQueueTest, WaitForSleepsInTheTierAndKeepsTheResults) {
  const TransferId first = *submit(1, TransferPriority::kDemand);
  submit(2, TransferPriority::kDemand);
  const TransferId last = *submit(3, TransferPriority::kDemand);
  tier_->completes_while_waiting = true;
  const std::array ids = {first, last};
  EXPECT_TRUE(queue_->wait_for(ids, clock_.now() + milliseconds(5)));
  EXPECT_EQ(tier_->num_waits, 3);
  EXPECT_EQ(poll().size(), 3U);
  EXPECT_TRUE(queue_->wait_for(ids, clock_.now())) << "taken counts as there";
}

TEST_F(TransferQueueTest, WaitForGivesUpAtItsTime) {
  const TransferId id = *submit(1, TransferPriority::kDemand);
  const Clock::TimePoint until = clock_.now() + milliseconds(5);
  EXPECT_FALSE(queue_->wait_for({&id, 1}, until));
  EXPECT_EQ(clock_.now(), until);
  EXPECT_DOUBLE_EQ(queue_->counters().wait_seconds, 0.005);
  EXPECT_EQ(tier_->num_waits, 1);
}

TEST_F(TransferQueueTest, WaitForEndsWithTheDeadlineOfTheTransfer) {
  const TransferId id = *submit(1, TransferPriority::kDemand, clock_.now() + milliseconds(2));
  EXPECT_TRUE(queue_->wait_for({&id, 1}, clock_.now() + milliseconds(50)));
  EXPECT_EQ(poll()[0].status, TransferStatus::kDeadlinePassed);
}

TEST_F(TransferQueueTest, DrainWaitsForEverything) {
  options_.max_in_flight = 2;
  remake(options_);
  for (std::uint32_t i = 0; i < 7; ++i) {
    submit(i, static_cast<TransferPriority>(i % 3));
  }
  EXPECT_FALSE(queue_->drain(clock_.now() + milliseconds(5)));
  tier_->completes_while_waiting = true;
  EXPECT_TRUE(queue_->drain(clock_.now() + milliseconds(5)));
  EXPECT_EQ(poll().size(), 7U);
  EXPECT_EQ(tier_->num_in_flight(), 0);
}

TEST_F(TransferQueueTest, FreeingAnExtentCancelsWhatIsQueuedForIt) {
  options_.max_in_flight = 1;
  remake(options_);
  submit(1, TransferPriority::kDemand);
  poll();
  submit(2, TransferPriority::kWriteBack);
  submit(3, TransferPriority::kWriteBack);
  queue_->free_extent(ExtentId(2));
  EXPECT_EQ(tier_->freed, (std::vector<ExtentId>{ExtentId(2)}));
  const std::vector<TransferResult> results = poll();
  ASSERT_EQ(results.size(), 1U);
  EXPECT_EQ(results[0].transfer.identity.block, 2U);
  EXPECT_EQ(results[0].status, TransferStatus::kCancelled);
}

TEST_F(TransferQueueTest, CountsBytesByPriorityAndResultsByStatus) {
  submit(1, TransferPriority::kDemand);
  submit(2, TransferPriority::kPrefetch);
  submit(3, TransferPriority::kWriteBack);
  poll();
  clock_.advance(milliseconds(3));
  tier_->complete();
  tier_->complete(TransferStatus::kShort);
  tier_->complete();
  poll();
  clock_.advance(milliseconds(3));
  poll();
  const TransferCounters& counters = queue_->counters();
  EXPECT_EQ(counters.by_priority[0].bytes_read, 4096);
  EXPECT_EQ(counters.by_priority[1].bytes_read, 0);
  EXPECT_EQ(counters.by_priority[1].results, 1);
  EXPECT_EQ(counters.by_priority[2].bytes_written, 4096);
  EXPECT_EQ(counters.results_by_status[static_cast<std::size_t>(TransferStatus::kOk)], 2);
  EXPECT_EQ(counters.results_by_status[static_cast<std::size_t>(TransferStatus::kShort)], 1);
  EXPECT_EQ(counters.by_priority[2].max_queued, 1);
  EXPECT_DOUBLE_EQ(counters.busy_seconds, 0.003);
}

// However often transfers are queued and cancelled behind a tier that does not move.
TEST_F(TransferQueueTest, CancellingOverAndOverLosesNothing) {
  options_.max_in_flight = 1;
  remake(options_);
  submit(1, TransferPriority::kDemand);
  poll();
  for (int round = 0; round < 2000; ++round) {
    for (int i = 0; i < 10; ++i) {
      ASSERT_TRUE(submit(2, TransferPriority::kPrefetch));
    }
    queue_->free_extent(ExtentId(2));
    ASSERT_EQ(poll().size(), 10U);
  }
  submit(77, TransferPriority::kPrefetch);
  tier_->complete();
  poll();
  EXPECT_EQ(tier_->order, (std::vector<std::uint32_t>{1, 77}));
}

}  // namespace
}  // namespace karez::test
