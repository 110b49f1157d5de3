// The extents of one tier: who has them, what they hold (checksums), what is in flight for them.
//
// The bookkeeping that all tiers share; it never sees the bytes of a block, except to hash them.
// Its memory grows with the extents in use, 56 bytes each, not with the capacity.
// Thread: one owner thread, except block_checksum(): any.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "kv/tier/transfer.h"

namespace karez {

// Of blocks first_block + i of a transfer.
using BlockChecksums = std::array<std::uint64_t, kExtentBlocks>;

// XXH3-64.
std::uint64_t block_checksum(const std::byte* block, std::size_t block_bytes);

class HomeSpace {
 public:
  // Requires: num_extents fits an ExtentId.
  explicit HomeSpace(std::int64_t num_extents);

  // nullopt: all are in use, or freed with transfers in flight.
  std::optional<ExtentId> allocate();
  // Requires: allocated.
  void free(ExtentId extent);

  // Marks the blocks of a transfer as in flight. A read gets the checksums that its bytes must
  // have; a write makes the old content invalid.
  // Not kOk: the transfer has failed for that reason, and nothing was marked.
  TransferStatus begin(const Transfer& transfer, BlockChecksums& checksums);
  // Takes the marks off. A write that is kOk makes its content valid, with these checksums.
  void end(const Transfer& transfer, TransferStatus status, const BlockChecksums& checksums);

  std::int64_t num_extents() const { return num_extents_; }
  std::int64_t free_extents() const { return num_extents_ - held_; }
  std::int64_t metadata_bytes() const;

 private:
  struct Extent {
    BlockChecksums checksums = {};
    std::array<std::uint32_t, kExtentBlocks> readers = {};
    std::uint8_t written = 0;  // bit b: block b has content
    std::uint8_t writing = 0;  // bit b: a write of block b is in flight
    bool allocated = false;
    std::uint32_t in_flight = 0;  // transfers
  };

  Extent& extent(ExtentId id);
  void give_back(ExtentId id);

  std::int64_t num_extents_;
  std::int64_t held_ = 0;
  std::deque<Extent> extents_;  // those ever used: growing must not move them all
  std::vector<ExtentId> free_ids_;
};

}  // namespace karez
