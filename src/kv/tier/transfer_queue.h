// TransferQueue: the order in which transfers reach a tier, and what became of each.
//
// Demand reads go before prefetch, prefetch before write-back, and each leaves room in flight for
// those above it. A transfer has one result, in poll(). It does not know what a transfer is for.
//
// Memory: lent from submit() until the result, or, if the result says memory_in_use, until
// take_released() gives the transfer: the tier may still write there after a deadline has passed.
// Thread: one owner thread. Only wait_for() and drain() block.
// Owns: the tier.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/trace.h"
#include "kv/tier/tier.h"

namespace karez {

enum class TransferPriority { kDemand, kPrefetch, kWriteBack };
inline constexpr int kNumTransferPriorities = 3;

using TransferId = std::uint64_t;  // never used twice by one queue

struct TransferQueueOptions {
  int max_in_flight = 128;  // given to the tier at a time; prefetch gets 3/4 of it, write-back half
  int max_queued = 4096;    // waiting, for each priority
  int max_results = 8192;   // untaken; with so many submit() says no
};

struct TransferCounters {
  struct ByPriority {
    std::int64_t bytes_read = 0;     // of transfers that are ok; a promoted one is a demand's
    std::int64_t bytes_written = 0;  // of transfers that are ok
    std::int64_t results = 0;        // all
    std::int64_t refused = 0;        // submit() said no
    int queued = 0;                  // now
    int max_queued = 0;              // the most there were
  };
  std::array<ByPriority, kNumTransferPriorities> by_priority = {};        // index: TransferPriority
  std::array<std::int64_t, kNumTransferStatuses> results_by_status = {};  // index: TransferStatus
  std::int64_t late = 0;      // memory given back after the deadline had passed
  int in_flight = 0;          // now
  double busy_seconds = 0.0;  // with something in flight, as seen at the calls
  double wait_seconds = 0.0;  // in wait_for()
};

class TransferQueue {
 public:
  static constexpr Clock::TimePoint kNoDeadline = Clock::TimePoint::max();

  // The clock must outlive the queue, and be the tier's. All options are at least 1.
  TransferQueue(std::unique_ptr<Tier> tier, const TransferQueueOptions& options,
                const Clock& clock = Clock::steady());
  ~TransferQueue();

  std::optional<ExtentId> allocate_extent() { return tier_->allocate_extent(); }
  // Cancels what is queued for it. What is in flight for it ends as it does; the room is used again
  // after that.
  void free_extent(ExtentId extent);
  // From submission to the poll that saw the end of each transfer, with its epoch as the group of
  // those submitted together. Null: no trace; borrowed.
  void set_trace(TraceWriter* trace);

  // nullopt: no room in the queue for this priority, or too many results untaken. transfer.id is
  // not used.
  std::optional<TransferId> submit(const Transfer& transfer, TransferPriority priority,
                                   Clock::TimePoint deadline = kNoDeadline);
  // Somebody waits for it now: from here on it is a demand. False: it is not waiting in the queue,
  // or is a demand already.
  bool promote(TransferId id);

  // Moves things along, and appends the results that are there.
  void poll(std::vector<TransferResult>& results);
  // Appends transfers whose results said memory_in_use, and whose memory is free now.
  void take_released(std::vector<Transfer>& released);

  // Sleeps until the results of all these are there for poll(), or were taken: true. False: `time`
  // came first.
  bool wait_for(std::span<const TransferId> ids, Clock::TimePoint time);
  // Sleeps until nothing is queued or in flight: true. False: `time` came first.
  bool drain(Clock::TimePoint time);

  const Tier& tier() const { return *tier_; }
  const TransferCounters& counters() const { return counters_; }

 private:
  enum class State { kFree, kQueued, kInFlight, kDone, kLate };
  struct Record {
    TransferResult result;  // its transfer always, the rest in kDone
    TransferPriority priority = TransferPriority::kDemand;
    State state = State::kFree;
    Clock::TimePoint deadline = kNoDeadline;
    Clock::TimePoint submitted;  // if there is a trace
    const Transfer& transfer() const { return result.transfer; }
  };

  Record* find(TransferId id);
  static bool is_waiting(const Record* record, TransferPriority priority) {
    return record != nullptr && record->state == State::kQueued && record->priority == priority;
  }
  void advance();
  void collect();
  void expire(Clock::TimePoint now);
  void hand_over();
  int in_flight_limit(TransferPriority priority) const;
  void finish(Record& record, TransferStatus status);
  void trace_end(const Record& record, TransferStatus status) const;
  void leave_queue(Record& record, TransferStatus status);
  void drop_stale_ids();
  void release(Record& record);
  void note_in_flight(int change);
  template <typename Done>
  bool wait_until(Clock::TimePoint time, Done done);

  std::unique_ptr<Tier> tier_;
  TransferQueueOptions options_;
  const Clock& clock_;
  std::vector<Record> records_;  // index: the low bits of a TransferId
  std::vector<std::uint32_t> free_records_;
  std::uint64_t generation_ = 0;
  std::array<std::deque<TransferId>, kNumTransferPriorities> queued_;  // and ids that have left it
  std::vector<int> queued_of_extent_;  // transfers; as long as it has to be
  std::vector<TransferId> done_;
  std::vector<Transfer> released_;
  std::vector<TransferResult> collected_;
  std::vector<Transfer> batch_;
  Clock::TimePoint next_deadline_ = kNoDeadline;  // no live one is earlier
  Clock::TimePoint busy_since_;
  TraceWriter* trace_ = nullptr;
  std::uint64_t trace_source_ = 0;
  TransferCounters counters_;
};

}  // namespace karez
