#include "kv/tier/transfer_queue.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"

namespace karez {

namespace {

// A TransferId is a number in order of submission, then this many bits of index into the records.
constexpr unsigned kIndexBits = 20;
constexpr std::size_t kMaxRecords = std::size_t{1} << kIndexBits;
// Ids in a queue that are not queued any more are tolerated up to as many as are, and these.
constexpr std::size_t kFewStaleIds = 256;

std::uint32_t record_of(TransferId id) {
  return static_cast<std::uint32_t>(id & (kMaxRecords - 1));
}

std::size_t index_of(TransferPriority priority) { return static_cast<std::size_t>(priority); }

double seconds(Clock::Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

TransferQueue::TransferQueue(std::unique_ptr<Tier> tier, const TransferQueueOptions& options,
                             const Clock& clock)
    : tier_(std::move(tier)), options_(options), clock_(clock) {
  KAREZ_CHECK(tier_ != nullptr, "a queue has a tier");
  KAREZ_CHECK(options.max_in_flight >= 1 && options.max_queued >= 1 && options.max_results >= 1,
              "a queue has room");
}

TransferQueue::~TransferQueue() = default;

void TransferQueue::free_extent(ExtentId extent) {
  const std::size_t index = extent.value;
  const bool has_queued = index < queued_of_extent_.size() && queued_of_extent_[index] > 0;
  for (int i = 0; has_queued && i < kNumTransferPriorities; ++i) {
    const auto priority = static_cast<std::size_t>(i);
    if (counters_.by_priority[priority].queued == 0) {
      continue;
    }
    for (const TransferId id : queued_[priority]) {
      Record* record = find(id);
      if (record != nullptr && record->state == State::kQueued &&
          record->transfer().extent == extent) {
        leave_queue(*record, TransferStatus::kCancelled);
      }
    }
  }
  drop_stale_ids();
  tier_->free_extent(extent);
}

void TransferQueue::set_trace(TraceWriter* trace) {
  trace_ = trace;
  trace_source_ = trace == nullptr ? 0 : trace->new_source();
}

std::optional<TransferId> TransferQueue::submit(const Transfer& transfer, TransferPriority priority,
                                                Clock::TimePoint deadline) {
  TransferCounters::ByPriority& counters = counters_.by_priority[index_of(priority)];
  if (counters.queued >= options_.max_queued ||
      done_.size() >= static_cast<std::size_t>(options_.max_results) ||
      (free_records_.empty() && records_.size() == kMaxRecords)) {
    ++counters.refused;
    return std::nullopt;
  }
  if (free_records_.empty()) {
    free_records_.push_back(static_cast<std::uint32_t>(records_.size()));
    records_.emplace_back();
  }
  const std::uint32_t index = free_records_.back();
  free_records_.pop_back();
  // Numbered from 1, so that no id is 0.
  const TransferId id = (++generation_ << kIndexBits) | index;
  Record& record = records_[index];
  record = {};
  record.result.transfer = transfer;
  record.result.transfer.id = id;
  record.priority = priority;
  record.state = State::kQueued;
  record.deadline = deadline;
  if (trace_ != nullptr) {
    record.submitted = clock_.now();
  }
  next_deadline_ = std::min(next_deadline_, deadline);
  queued_[index_of(priority)].push_back(id);
  counters.max_queued = std::max(counters.max_queued, ++counters.queued);
  if (transfer.extent.value >= queued_of_extent_.size()) {
    queued_of_extent_.resize(std::size_t{transfer.extent.value} + 1);
  }
  ++queued_of_extent_[transfer.extent.value];
  return id;
}

bool TransferQueue::promote(TransferId id) {
  Record* record = find(id);
  if (record == nullptr || record->state != State::kQueued ||
      record->priority == TransferPriority::kDemand) {
    return false;
  }
  --counters_.by_priority[index_of(record->priority)].queued;
  record->priority = TransferPriority::kDemand;  // which makes its id in the old queue stale
  TransferCounters::ByPriority& counters = counters_.by_priority[index_of(record->priority)];
  queued_[index_of(record->priority)].push_back(id);
  counters.max_queued = std::max(counters.max_queued, ++counters.queued);
  drop_stale_ids();
  return true;
}

void TransferQueue::poll(std::vector<TransferResult>& results) {
  advance();
  for (const TransferId id : done_) {
    Record& record = *find(id);
    results.push_back(record.result);
    if (record.result.memory_in_use) {
      record.state = State::kLate;
    } else {
      release(record);
    }
  }
  done_.clear();
}

void TransferQueue::take_released(std::vector<Transfer>& released) {
  released.insert(released.end(), released_.begin(), released_.end());
  released_.clear();
}

bool TransferQueue::wait_for(std::span<const TransferId> ids, Clock::TimePoint time) {
  const Clock::TimePoint start = clock_.now();
  const bool all_done = wait_until(time, [&] {
    return std::all_of(ids.begin(), ids.end(), [&](TransferId id) {
      const Record* record = find(id);
      return record == nullptr || record->state == State::kDone || record->state == State::kLate;
    });
  });
  counters_.wait_seconds += seconds(clock_.now() - start);
  return all_done;
}

bool TransferQueue::drain(Clock::TimePoint time) {
  return wait_until(time, [&] {
    return counters_.in_flight == 0 &&
           std::all_of(counters_.by_priority.begin(), counters_.by_priority.end(),
                       [](const TransferCounters::ByPriority& by) { return by.queued == 0; });
  });
}

template <typename Done>
bool TransferQueue::wait_until(Clock::TimePoint time, Done done) {
  while (true) {
    advance();
    if (done()) {
      return true;
    }
    if (clock_.now() >= time) {
      return false;
    }
    tier_->wait_until(std::min(time, next_deadline_));
  }
}

TransferQueue::Record* TransferQueue::find(TransferId id) {
  const std::uint32_t index = record_of(id);
  if (index >= records_.size() || records_[index].state == State::kFree ||
      records_[index].transfer().id != id) {
    return nullptr;
  }
  return &records_[index];
}

void TransferQueue::advance() {
  collect();
  const Clock::TimePoint now = clock_.now();
  if (now >= next_deadline_) {
    expire(now);
  }
  hand_over();
}

void TransferQueue::collect() {
  if (counters_.in_flight == 0) {
    return;
  }
  collected_.clear();
  tier_->poll(collected_);
  for (const TransferResult& result : collected_) {
    Record* record = find(result.transfer.id);
    KAREZ_CHECK(record != nullptr, "a tier reports what was submitted to it");
    switch (record->state) {
      case State::kInFlight:
        record->result.error_number = result.error_number;
        finish(*record, result.status);
        break;
      case State::kDone:  // late, and its result not taken: it need not say more than it was
        record->result.memory_in_use = false;
        ++counters_.late;
        break;
      case State::kLate:
        released_.push_back(record->transfer());
        ++counters_.late;
        release(*record);
        break;
      case State::kFree:
      case State::kQueued:
        KAREZ_CHECK(false, "a tier reports what was submitted to it");
    }
  }
  note_in_flight(-static_cast<int>(collected_.size()));
}

void TransferQueue::expire(Clock::TimePoint now) {
  next_deadline_ = kNoDeadline;
  for (Record& record : records_) {
    const bool is_queued = record.state == State::kQueued;
    if (!is_queued && record.state != State::kInFlight) {
      continue;
    }
    if (record.deadline > now) {
      next_deadline_ = std::min(next_deadline_, record.deadline);
      continue;
    }
    if (is_queued) {
      leave_queue(record, TransferStatus::kDeadlinePassed);
    } else {
      record.result.memory_in_use = true;
      finish(record, TransferStatus::kDeadlinePassed);
    }
  }
  drop_stale_ids();
}

int TransferQueue::in_flight_limit(TransferPriority priority) const {
  const int limit = std::min(options_.max_in_flight, tier_->capacity().max_in_flight);
  return std::max(1, limit - limit * static_cast<int>(priority) / 4);
}

void TransferQueue::hand_over() {
  for (int i = 0; i < kNumTransferPriorities; ++i) {
    const auto priority = static_cast<std::size_t>(i);
    std::deque<TransferId>& waiting = queued_[priority];
    const int limit = waiting.empty() ? 0 : in_flight_limit(static_cast<TransferPriority>(i));
    batch_.clear();
    while (!waiting.empty() && counters_.in_flight + static_cast<int>(batch_.size()) < limit) {
      const Record* record = find(waiting.front());
      if (is_waiting(record, static_cast<TransferPriority>(i))) {
        batch_.push_back(record->transfer());
      }
      waiting.pop_front();
    }
    if (batch_.empty()) {
      continue;
    }
    const std::size_t num_taken = tier_->submit(batch_);
    for (std::size_t taken = 0; taken < num_taken; ++taken) {
      find(batch_[taken].id)->state = State::kInFlight;
      --queued_of_extent_[batch_[taken].extent.value];
    }
    for (std::size_t left = batch_.size(); left > num_taken; --left) {
      waiting.push_front(batch_[left - 1].id);
    }
    counters_.by_priority[priority].queued -= static_cast<int>(num_taken);
    note_in_flight(static_cast<int>(num_taken));
    if (num_taken < batch_.size()) {
      return;
    }
  }
}

void TransferQueue::finish(Record& record, TransferStatus status) {
  const bool reads = record.transfer().direction == TransferDirection::kRead;
  TransferCounters::ByPriority& counters = counters_.by_priority[index_of(record.priority)];
  ++counters.results;
  ++counters_.results_by_status[static_cast<std::size_t>(status)];
  if (status == TransferStatus::kOk) {
    (reads ? counters.bytes_read : counters.bytes_written) +=
        static_cast<std::int64_t>(tier_->block_bytes()) * record.transfer().num_blocks;
  }
  if (trace_ != nullptr) {
    trace_end(record, status);
  }
  record.state = State::kDone;
  record.result.status = status;
  done_.push_back(record.transfer().id);
}

void TransferQueue::trace_end(const Record& record, TransferStatus status) const {
  // What a load waits for is a demand, however it began.
  constexpr std::array<TraceRow, kNumTransferPriorities> kRows = {
      TraceRow::kDemand, TraceRow::kPrefetch, TraceRow::kWriteBack};
  const Transfer& transfer = record.transfer();
  trace_->add({.name = transfer.direction == TransferDirection::kRead ? "read" : "write",
               .row = kRows[index_of(record.priority)],
               .has_failed = status != TransferStatus::kOk,
               .layer = static_cast<int>(transfer.identity.layer),
               .group = trace_source_ | transfer.identity.epoch,
               .items = transfer.num_blocks,
               .bytes = static_cast<std::int64_t>(tier_->block_bytes()) * transfer.num_blocks,
               .begin = record.submitted,
               .end = clock_.now()});
}

void TransferQueue::leave_queue(Record& record, TransferStatus status) {
  --counters_.by_priority[index_of(record.priority)].queued;
  --queued_of_extent_[record.transfer().extent.value];
  finish(record, status);
}

// Each queue's ids stay within twice what is queued, however often transfers are cancelled.
void TransferQueue::drop_stale_ids() {
  for (std::size_t priority = 0; priority < queued_.size(); ++priority) {
    const auto num_queued = static_cast<std::size_t>(counters_.by_priority[priority].queued);
    if (queued_[priority].size() > 2 * num_queued + kFewStaleIds) {
      std::erase_if(queued_[priority], [this, priority](TransferId id) {
        return !is_waiting(find(id), static_cast<TransferPriority>(priority));
      });
    }
  }
}

void TransferQueue::release(Record& record) {
  record.state = State::kFree;
  free_records_.push_back(record_of(record.transfer().id));
}

void TransferQueue::note_in_flight(int change) {
  const bool was_busy = counters_.in_flight > 0;
  counters_.in_flight += change;
  const bool is_busy = counters_.in_flight > 0;
  if (was_busy || is_busy) {
    const Clock::TimePoint now = clock_.now();
    if (was_busy) {
      counters_.busy_seconds += seconds(now - busy_since_);
    }
    busy_since_ = now;
  }
}

}  // namespace karez
