// ThrottledTier: a tier made as slow as a medium to be studied. Figures from it are not the
// machine's and must be labelled so.
//
// One link for both directions: a transfer takes the link when it is free, for bytes / bandwidth,
// and is reported a latency after that, or when the tier below has it, whichever is later.
// Thread: as Tier. Owns: the tier below.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "kv/tier/throttle.h"
#include "kv/tier/tier.h"

namespace karez {

class ThrottledTier final : public Tier {
 public:
  // The clock must outlive this, and be the tier's if that one waits by itself.
  ThrottledTier(std::unique_ptr<Tier> inner, const Throttle& throttle,
                const Clock& clock = Clock::steady());

  std::optional<ExtentId> allocate_extent() override { return inner_->allocate_extent(); }
  void free_extent(ExtentId extent) override { inner_->free_extent(extent); }
  std::size_t submit(std::span<const Transfer> transfers) override;
  void poll(std::vector<TransferResult>& results) override;
  void wait_until(Clock::TimePoint time) override;
  std::size_t block_bytes() const override { return inner_->block_bytes(); }
  TierCapacity capacity() const override;
  // "host memory: ..., throttled to 2.0 GiB/s, 50 us".
  std::string describe() const override;

 private:
  struct Held {
    Clock::TimePoint due;
    TransferResult result;
  };
  static bool is_later(const Held& a, const Held& b) { return a.due > b.due; }
  Clock::Duration time_on_link(const Transfer& transfer) const;
  void collect();

  std::unique_ptr<Tier> inner_;
  Throttle throttle_;
  const Clock& clock_;
  Clock::TimePoint link_free_;
  std::unordered_map<std::uint64_t, Clock::TimePoint> due_;  // index: id of those in flight below
  std::vector<Held> held_;                                   // a heap, the earliest in front
  std::vector<TransferResult> collected_;
};

}  // namespace karez
