// A transfer: some blocks of one extent, moved between fast memory and a tier. Plain values.
//
// Extent: the home of kExtentBlocks neighbouring blocks of one KV head of one layer (64 tokens). It
// is what a tier allocates; a transfer moves one block of it, or a run of its blocks.
// Thread: values, no shared state.
// Owns: nothing. The memory that a transfer names is lent to the tier until the tier has reported.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/strong_id.h"
#include "kv/kv_types.h"

namespace karez {

inline constexpr int kExtentBlocks = 4;
inline constexpr int kExtentTokens = kExtentBlocks * kBlockSize;

// Room for one extent in one tier.
using ExtentId = StrongId<struct ExtentIdTag>;

// Where one block is: a place in an extent.
struct HomePlace {
  ExtentId extent;
  int index = 0;
};

enum class TransferDirection {
  kRead,   // home -> fast memory
  kWrite,  // fast memory -> home
};

// For whom and of what state a transfer was: comes back unchanged, so that the caller can tell that
// the world has moved on and ignore the result.
struct TransferIdentity {
  std::uint64_t owner = 0;  // whose transfer it is; comes back unchanged
  std::uint32_t epoch = 0;
  std::uint32_t layer = 0;
  std::uint32_t head = 0;
  std::uint32_t block = 0;

  friend bool operator==(const TransferIdentity&, const TransferIdentity&) = default;
};

struct Transfer {
  std::uint64_t id = 0;  // differs from every other in flight in the tier; TransferQueue sets it
  TransferDirection direction = TransferDirection::kRead;
  ExtentId extent;
  int first_block = 0;  // in the extent
  int num_blocks = 1;   // first_block + num_blocks <= kExtentBlocks
  // memory[i]: Tier::block_bytes() bytes for block first_block + i, aligned to 64.
  std::array<std::byte*, kExtentBlocks> memory = {};
  TransferIdentity identity;
};

enum class TransferStatus {
  kOk,
  kIoError,           // the medium said no; error_number says why
  kNoSpace,           // a write found the medium full (disk, quota, file size limit)
  kShort,             // fewer bytes were moved than asked for
  kChecksumMismatch,  // the bytes are not those written, or nothing was ever written completely
  kConflict,          // another transfer of the same blocks was in flight, and one of them writes
  kDeadlinePassed,
  kCancelled,
};
inline constexpr int kNumTransferStatuses = 8;

std::string_view to_string(TransferStatus status);

// After a failed read the memory holds rubbish. After a failed write the home blocks hold nothing:
// reading them fails until a write has succeeded.
struct TransferResult {
  Transfer transfer;
  TransferStatus status = TransferStatus::kOk;
  int error_number = 0;        // errno, for kIoError and kNoSpace
  bool memory_in_use = false;  // kDeadlinePassed: see TransferQueue::take_released()

  bool ok() const { return status == TransferStatus::kOk; }
};

}  // namespace karez
