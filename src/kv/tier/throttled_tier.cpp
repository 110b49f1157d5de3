#include "kv/tier/throttled_tier.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"

namespace karez {

ThrottledTier::ThrottledTier(std::unique_ptr<Tier> inner, const Throttle& throttle,
                             const Clock& clock)
    : inner_(std::move(inner)), throttle_(throttle), clock_(clock) {
  KAREZ_CHECK(inner_ != nullptr, "there is a tier to throttle");
  KAREZ_CHECK(throttle.bytes_per_second >= 0, "a rate is not negative");
}

std::size_t ThrottledTier::submit(std::span<const Transfer> transfers) {
  const TierCapacity now = capacity();
  const auto room = static_cast<std::size_t>(now.max_in_flight - now.in_flight);
  const std::size_t num_taken = inner_->submit(transfers.first(std::min(room, transfers.size())));
  link_free_ = std::max(link_free_, clock_.now());
  for (const Transfer& transfer : transfers.first(num_taken)) {
    link_free_ += time_on_link(transfer);
    due_[transfer.id] = link_free_ + throttle_.latency;
  }
  return num_taken;
}

void ThrottledTier::poll(std::vector<TransferResult>& results) {
  collect();
  const Clock::TimePoint now = clock_.now();
  while (!held_.empty() && held_.front().due <= now) {
    results.push_back(held_.front().result);
    std::pop_heap(held_.begin(), held_.end(), is_later);
    held_.pop_back();
  }
}

void ThrottledTier::wait_until(Clock::TimePoint time) {
  collect();
  const Clock::TimePoint next = held_.empty() ? time : std::min(time, held_.front().due);
  if (!due_.empty()) {
    inner_->wait_until(next);
  } else if (!held_.empty()) {
    clock_.sleep_until(next);
  }
}

TierCapacity ThrottledTier::capacity() const {
  TierCapacity capacity = inner_->capacity();
  capacity.in_flight = static_cast<int>(due_.size() + held_.size());
  return capacity;
}

std::string ThrottledTier::describe() const {
  return fmt::format("{}, throttled to {}", inner_->describe(), to_string(throttle_));
}

Clock::Duration ThrottledTier::time_on_link(const Transfer& transfer) const {
  if (throttle_.bytes_per_second == 0) {
    return {};
  }
  const double bytes = static_cast<double>(inner_->block_bytes()) * transfer.num_blocks;
  return std::chrono::duration_cast<Clock::Duration>(
      std::chrono::duration<double>(bytes / static_cast<double>(throttle_.bytes_per_second)));
}

void ThrottledTier::collect() {
  if (due_.empty()) {
    return;
  }
  collected_.clear();
  inner_->poll(collected_);
  for (const TransferResult& result : collected_) {
    const auto due = due_.find(result.transfer.id);
    KAREZ_CHECK(due != due_.end(), "a tier reports what was submitted to it");
    held_.push_back({due->second, result});
    std::push_heap(held_.begin(), held_.end(), is_later);
    due_.erase(due);
  }
}

}  // namespace karez
