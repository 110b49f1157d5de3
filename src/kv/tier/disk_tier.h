// DiskTier: home in one nameless file, through io_uring, past the page cache where that is
// possible.
//
// The file goes when the tier does: nothing in it survives the process. A full disk fails the
// write (kNoSpace) and nothing else.
// A block starts at a multiple of the sector size, so blocks that are not whole sectors take more
// room on the disk, and go through a staging buffer, as does memory that is not aligned enough.
// Thread: as Tier. The owner thread checksums; the kernel moves.
// Owns: the file, the ring, the staging buffers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "kv/tier/tier.h"

namespace karez {

struct DiskTierOptions {
  std::string directory;
  std::size_t block_bytes = 0;      // > 0
  std::int64_t capacity_bytes = 0;  // rounded down to whole extents; the file is never longer
  int max_in_flight = 128;
};

class DiskTier final : public Tier {
 public:
  // Fails: kInvalidArgument if the capacity holds no extent, or an option is out of range;
  // kNotFound or kIoError for the directory; kUnavailable if this system forbids io_uring.
  static Expected<std::unique_ptr<DiskTier>> create(const DiskTierOptions& options);
  // Waits for what is in flight, because the kernel has its memory.
  ~DiskTier() override;

  std::optional<ExtentId> allocate_extent() override;
  void free_extent(ExtentId extent) override;
  std::size_t submit(std::span<const Transfer> transfers) override;
  void poll(std::vector<TransferResult>& results) override;
  void wait_until(Clock::TimePoint time) override;
  std::size_t block_bytes() const override;
  TierCapacity capacity() const override;
  std::string describe() const override;

  // False: the file system does not allow O_DIRECT, so the page cache holds a copy too.
  bool is_direct() const;
  // Transfers that were copied once more than needed.
  std::int64_t num_staged() const;

 private:
  class Impl;
  explicit DiskTier(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace karez
