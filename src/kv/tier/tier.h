// Tier: a level of storage below the fast tier, as room for extents and a way to move blocks.
//
// It knows bytes, extents and checksums; not sequences, not what is worth keeping. Every block is
// checksummed when it is written and verified when it is read: a read gives the bytes of the last
// write that succeeded, or fails. Only wait_until() blocks.
// Thread: one owner thread calls it. Workers and the kernel own nothing: they move bytes between
// memory that was handed to them.
// Ownership: a transfer's memory is lent from submit() until poll() has given its result; written
// memory must not change meanwhile. A tier's destructor waits for the memory that it still has.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "kv/tier/transfer.h"

namespace karez {

struct TierCapacity {
  std::int64_t extent_bytes = 0;  // what one extent takes on the medium, padding included
  std::int64_t num_extents = 0;
  std::int64_t free_extents = 0;
  // Extents besides these that lie elsewhere and are only read (a peer's): how many at most.
  std::int64_t num_foreign_extents = 0;
  int max_in_flight = 0;
  int in_flight = 0;                // submitted and not given by poll() yet
  std::int64_t metadata_bytes = 0;  // RAM for checksums and states; grows with the extents used

  std::int64_t capacity_bytes() const { return num_extents * extent_bytes; }
  std::int64_t used_bytes() const { return (num_extents - free_extents) * extent_bytes; }
};

class Tier {
 public:
  Tier() = default;
  Tier(const Tier&) = delete;
  Tier& operator=(const Tier&) = delete;
  virtual ~Tier() = default;

  // nullopt: full.
  virtual std::optional<ExtentId> allocate_extent() = 0;
  // Its content is gone. The room is used again only when nothing moves to or from it any more.
  // Requires: allocated, and not freed yet.
  virtual void free_extent(ExtentId extent) = 0;

  // Takes transfers from the front as long as there is room in flight, and returns how many.
  // Requires: their extents are allocated, their memory is there.
  virtual std::size_t submit(std::span<const Transfer> transfers) = 0;
  // Appends the results that have come in. Each accepted transfer gets exactly one, in any order.
  virtual void poll(std::vector<TransferResult>& results) = 0;
  // Sleeps until poll() may have something to give, or until `time`; may return early, and does so
  // if nothing is in flight.
  virtual void wait_until(Clock::TimePoint time) = 0;

  virtual std::size_t block_bytes() const = 0;
  virtual TierCapacity capacity() const = 0;
  // One line for logs: "disk /var/tmp: 64.0 GiB, io_uring, O_DIRECT (512-byte sectors)".
  virtual std::string describe() const = 0;
};

}  // namespace karez
