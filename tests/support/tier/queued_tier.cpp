#include "support/tier/queued_tier.h"

#include <utility>

namespace karez::test {

QueuedTier::QueuedTier(std::unique_ptr<Tier> tier, const TransferQueueOptions& options,
                       const Clock& clock, Clock::Duration time_limit)
    : queue_(std::move(tier), options, clock),
      max_in_flight_(options.max_queued),
      clock_(clock),
      time_limit_(time_limit) {}

std::size_t QueuedTier::submit(std::span<const Transfer> transfers) {
  std::size_t num_taken = 0;
  for (const Transfer& transfer : transfers) {
    if (capacity().in_flight >= max_in_flight_) {
      break;
    }
    const auto priority = static_cast<TransferPriority>(num_submitted_ % kNumTransferPriorities);
    const std::optional<TransferId> id =
        queue_.submit(transfer, priority, clock_.now() + time_limit_);
    if (!id) {
      break;
    }
    ids_[*id] = transfer.id;
    ++num_submitted_;
    ++num_taken;
  }
  return num_taken;
}

void QueuedTier::poll(std::vector<TransferResult>& results) {
  std::vector<TransferResult> finished;
  queue_.poll(finished);
  for (TransferResult& result : finished) {
    const TransferId id = result.transfer.id;
    result.transfer.id = ids_.at(id);
    ids_.erase(id);
    if (result.memory_in_use) {
      delayed_[id] = result;
    } else {
      results.push_back(result);
    }
  }
  std::vector<Transfer> released;
  queue_.take_released(released);
  for (const Transfer& transfer : released) {
    TransferResult& result = delayed_.at(transfer.id);
    result.memory_in_use = false;
    results.push_back(result);
    delayed_.erase(transfer.id);
  }
}

void QueuedTier::wait_until(Clock::TimePoint time) {
  if (!ids_.empty()) {
    const TransferId first = ids_.begin()->first;
    static_cast<void>(queue_.wait_for({&first, 1}, time));
  } else if (!delayed_.empty()) {
    static_cast<void>(queue_.drain(time));
  }
}

TierCapacity QueuedTier::capacity() const {
  TierCapacity capacity = queue_.tier().capacity();
  capacity.max_in_flight = max_in_flight_;
  capacity.in_flight = static_cast<int>(ids_.size() + delayed_.size());
  return capacity;
}

}  // namespace karez::test
