#include "support/tier/faulty_tier.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace karez::test {

FaultyTier::FaultyTier(std::unique_ptr<Tier> inner, const Faults& faults, FlipBit flip_bit,
                       const Clock& clock)
    : inner_(std::move(inner)), faults_(faults), flip_bit_(std::move(flip_bit)), clock_(clock) {}

void FaultyTier::report_lost() {
  for (const TransferResult& result : lost_) {
    held_.emplace(clock_.now(), result);
  }
  lost_.clear();
}

std::size_t FaultyTier::submit(std::span<const Transfer> transfers) {
  const TierCapacity now = capacity();
  const auto room = static_cast<std::size_t>(now.max_in_flight - now.in_flight);
  std::size_t num_taken = 0;
  for (const Transfer& transfer : transfers.first(std::min(transfers.size(), room))) {
    ++num_submitted_;
    const bool is_write = transfer.direction == TransferDirection::kWrite;
    num_writes_ += is_write ? 1 : 0;
    const bool is_spared = !faults_.hits_writes && is_write;
    const bool fails = is_write && num_writes_ == faults_.fail_write;
    const auto hits = [&](int every) {
      return every > 0 && num_submitted_ % every == 0 && !is_spared;
    };
    Plan plan;
    plan.status = fails || hits(faults_.fail_every) ? TransferStatus::kIoError
                  : hits(faults_.short_every)       ? TransferStatus::kShort
                                                    : TransferStatus::kOk;
    plan.rots = hits(faults_.rot_every) && transfer.direction == TransferDirection::kRead;
    plan.is_lost = hits(faults_.lose_every);
    plan.due = clock_.now() + faults_.delay;
    if (plan.rots) {
      flip_bit_(transfer.extent, transfer.first_block);
    }
    if (inner_->submit({&transfer, 1}) == 0) {
      if (plan.rots) {
        flip_bit_(transfer.extent, transfer.first_block);
      }
      --num_submitted_;
      num_writes_ -= is_write ? 1 : 0;
      break;
    }
    plans_[transfer.id] = plan;
    ++num_taken;
    if (plan.rots) {
      // Back before anybody else can see it: what is wrong once need not be wrong for ever.
      while (plans_.contains(transfer.id)) {
        collect();
      }
    }
  }
  return num_taken;
}

void FaultyTier::poll(std::vector<TransferResult>& results) {
  collect();
  const auto due = held_.upper_bound(clock_.now());
  for (auto it = held_.begin(); it != due; ++it) {
    results.push_back(it->second);
  }
  held_.erase(held_.begin(), due);
}

void FaultyTier::wait_until(Clock::TimePoint time) {
  collect();
  const Clock::TimePoint next = held_.empty() ? time : std::min(time, held_.begin()->first);
  if (plans_.empty()) {
    if (!held_.empty() || !lost_.empty()) {
      clock_.sleep_until(next);
    }
  } else {
    inner_->wait_until(next);
  }
}

TierCapacity FaultyTier::capacity() const {
  TierCapacity capacity = inner_->capacity();
  capacity.in_flight = static_cast<int>(plans_.size() + held_.size() + lost_.size());
  return capacity;
}

void FaultyTier::collect() {
  std::vector<TransferResult> results;
  inner_->poll(results);
  for (TransferResult& result : results) {
    const Plan plan = plans_.at(result.transfer.id);
    plans_.erase(result.transfer.id);
    if (plan.rots) {
      flip_bit_(result.transfer.extent, result.transfer.first_block);
    }
    if (plan.status != TransferStatus::kOk) {
      result.status = plan.status;
      result.error_number = plan.status == TransferStatus::kIoError ? EIO : 0;
    }
    if (!result.ok()) {
      spoil(result.transfer);
    }
    if (plan.is_lost) {
      lost_.push_back(result);
    } else {
      held_.emplace(plan.due, result);
    }
  }
}

// Whoever uses the memory of a failed read shall notice.
void FaultyTier::spoil(const Transfer& transfer) const {
  if (transfer.direction == TransferDirection::kRead) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(transfer.num_blocks); ++i) {
      std::fill_n(transfer.memory[i], inner_->block_bytes() / 2, std::byte{0xEE});
    }
  }
}

}  // namespace karez::test
