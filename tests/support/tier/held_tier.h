// A tier whose transfers take as long as the test says, or fail.
//
// Thread: as Tier, with a tier below that has no workers. Owns: the tier below.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "kv/tier/tier.h"

namespace karez::test {

class HeldTier final : public Tier {
 public:
  HeldTier(std::unique_ptr<Tier> inner, const Clock& clock)
      : inner_(std::move(inner)), clock_(clock) {}

  bool holds_reads = false;   // until let_go(), or until somebody waits
  bool holds_writes = false;  // likewise
  bool is_silent = false;     // waiting does not help
  int reads_to_fail = 0;      // so many of the next results
  int writes_to_fail = 0;     // likewise
  TransferStatus failed_write = TransferStatus::kIoError;
  std::vector<Transfer> reads;
  std::vector<int> reads_of_calls;  // how many came in each call of submit() with any

  void let_go() {
    collect();
    ready_.insert(ready_.end(), held_.begin(), held_.end());
    held_.clear();
  }

  std::optional<ExtentId> allocate_extent() override { return inner_->allocate_extent(); }
  void free_extent(ExtentId extent) override { inner_->free_extent(extent); }
  std::size_t submit(std::span<const Transfer> transfers) override {
    const TierCapacity now = capacity();
    const auto room = static_cast<std::size_t>(std::max(0, now.max_in_flight - now.in_flight));
    const std::size_t taken = inner_->submit(transfers.first(std::min(room, transfers.size())));
    int num_reads = 0;
    for (const Transfer& transfer : transfers.first(taken)) {
      if (transfer.direction == TransferDirection::kRead) {
        reads.push_back(transfer);
        ++num_reads;
      }
    }
    if (num_reads > 0) {
      reads_of_calls.push_back(num_reads);
    }
    return taken;
  }
  void poll(std::vector<TransferResult>& results) override {
    collect();
    results.insert(results.end(), ready_.begin(), ready_.end());
    ready_.clear();
  }
  void wait_until(Clock::TimePoint time) override {
    collect();
    if (!ready_.empty()) {
      return;
    }
    if (is_silent || held_.empty()) {
      clock_.sleep_until(time);
    } else {
      let_go();
    }
  }
  std::size_t block_bytes() const override { return inner_->block_bytes(); }
  TierCapacity capacity() const override {
    TierCapacity capacity = inner_->capacity();
    capacity.in_flight += static_cast<int>(held_.size() + ready_.size());
    return capacity;
  }
  std::string describe() const override { return "held " + inner_->describe(); }

 private:
  void collect() {
    std::vector<TransferResult> results;
    inner_->poll(results);
    for (TransferResult& result : results) {
      const bool is_read = result.transfer.direction == TransferDirection::kRead;
      if (is_read && reads_to_fail > 0) {
        --reads_to_fail;
        result.status = TransferStatus::kIoError;
        for (int i = 0; i < result.transfer.num_blocks; ++i) {
          std::fill_n(result.transfer.memory[static_cast<std::size_t>(i)], block_bytes(),
                      std::byte{0xEE});
        }
      }
      if (!is_read && writes_to_fail > 0) {
        --writes_to_fail;
        result.status = failed_write;
      }
      ((is_read ? holds_reads : holds_writes) ? held_ : ready_).push_back(result);
    }
  }

  std::unique_ptr<Tier> inner_;
  const Clock& clock_;
  std::vector<TransferResult> held_;
  std::vector<TransferResult> ready_;
};

}  // namespace karez::test
