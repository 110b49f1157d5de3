// HostTier: home in RAM. Another NUMA node, memory behind CXL, or simply RAM outside the cap.
//
// Pages of the arena become resident when they are first written.
// Thread: as Tier. Worker threads copy and checksum; with none, submit() copies itself.
// Owns: the arena, the workers.
#pragma once

#include <cstdint>
#include <memory>

#include "base/arena.h"
#include "base/status.h"
#include "kv/tier/tier.h"

namespace karez {

struct HostTierOptions {
  std::size_t block_bytes = 0;      // > 0
  std::int64_t capacity_bytes = 0;  // rounded down to whole extents
  int num_workers = 1;              // 0: copy in submit(), report at the next poll()
  int max_in_flight = 1024;
};

class HostTier final : public Tier {
 public:
  // Fails: kInvalidArgument if the capacity holds no extent, or an option is out of range;
  // kResourceExhausted if the machine does not have the memory, or no thread can be started.
  static Expected<std::unique_ptr<HostTier>> create(const HostTierOptions& options);
  // Over memory that is already there (another NUMA node's, say); capacity_bytes is not used.
  // Extent e begins at byte e * capacity().extent_bytes of it, block b of it b quarters further.
  static Expected<std::unique_ptr<HostTier>> create(const HostTierOptions& options, Arena arena);
  ~HostTier() override;

  std::optional<ExtentId> allocate_extent() override;
  void free_extent(ExtentId extent) override;
  std::size_t submit(std::span<const Transfer> transfers) override;
  void poll(std::vector<TransferResult>& results) override;
  void wait_until(Clock::TimePoint time) override;
  std::size_t block_bytes() const override;
  TierCapacity capacity() const override;
  std::string describe() const override;

 private:
  class Impl;
  explicit HostTier(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace karez
