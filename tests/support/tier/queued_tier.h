// A TransferQueue seen as a tier, so that the tests of tiers run over it too.
//
// Thread: as Tier. Owns: the queue.
#pragma once

#include <map>
#include <memory>

#include "kv/tier/transfer_queue.h"

namespace karez::test {

class QueuedTier final : public Tier {
 public:
  // Priorities by turns. Each transfer gets `time_limit` from its submission.
  QueuedTier(std::unique_ptr<Tier> tier, const TransferQueueOptions& options, const Clock& clock,
             Clock::Duration time_limit);

  std::optional<ExtentId> allocate_extent() override { return queue_.allocate_extent(); }
  void free_extent(ExtentId extent) override { queue_.free_extent(extent); }
  std::size_t submit(std::span<const Transfer> transfers) override;
  // A result says memory_in_use = false only.
  void poll(std::vector<TransferResult>& results) override;
  void wait_until(Clock::TimePoint time) override;
  std::size_t block_bytes() const override { return queue_.tier().block_bytes(); }
  TierCapacity capacity() const override;
  std::string describe() const override { return "queue over " + queue_.tier().describe(); }

 private:
  TransferQueue queue_;
  int max_in_flight_;
  const Clock& clock_;
  Clock::Duration time_limit_;
  int num_submitted_ = 0;
  std::map<TransferId, std::uint64_t> ids_;       // the caller's, of those without a result
  std::map<TransferId, TransferResult> delayed_;  // have a result, but not their memory
};

}  // namespace karez::test
