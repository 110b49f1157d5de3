#include "kv/tier/home_space.h"

#include <xxhash.h>

#include "base/check.h"

namespace karez {

namespace {
unsigned bit(int block) { return 1U << static_cast<unsigned>(block); }
}  // namespace

std::uint64_t block_checksum(const std::byte* block, std::size_t block_bytes) {
  return XXH3_64bits(block, block_bytes);
}

HomeSpace::HomeSpace(std::int64_t num_extents) : num_extents_(num_extents) {
  KAREZ_CHECK(num_extents >= 0 && num_extents < ExtentId::kNoneValue, "extents have 32-bit ids");
}

std::optional<ExtentId> HomeSpace::allocate() {
  ExtentId id;
  if (!free_ids_.empty()) {
    id = free_ids_.back();
    free_ids_.pop_back();
  } else if (static_cast<std::int64_t>(extents_.size()) < num_extents_) {
    id = ExtentId(static_cast<std::uint32_t>(extents_.size()));
    extents_.emplace_back();
  } else {
    return std::nullopt;
  }
  extents_[id.value].allocated = true;
  ++held_;
  return id;
}

void HomeSpace::free(ExtentId id) {
  Extent& freed = extent(id);
  KAREZ_CHECK(freed.allocated, "an extent is freed once");
  freed.allocated = false;
  freed.written = 0;
  if (freed.in_flight == 0) {
    give_back(id);
  }
}

TransferStatus HomeSpace::begin(const Transfer& transfer, BlockChecksums& checksums) {
  Extent& used = extent(transfer.extent);
  KAREZ_CHECK(used.allocated, "a transfer's extent is allocated");
  KAREZ_CHECK(transfer.first_block >= 0 && transfer.num_blocks >= 1 &&
                  transfer.num_blocks <= kExtentBlocks - transfer.first_block,
              "a transfer stays in its extent");
  const bool reads = transfer.direction == TransferDirection::kRead;
  bool conflict = false;
  bool is_written = true;
  for (int i = 0; i < transfer.num_blocks; ++i) {
    const int block = transfer.first_block + i;
    KAREZ_CHECK(transfer.memory[static_cast<std::size_t>(i)] != nullptr,
                "each block of a transfer has memory");
    conflict = conflict || (used.writing & bit(block)) != 0 ||
               (!reads && used.readers[static_cast<std::size_t>(block)] > 0);
    is_written = is_written && (used.written & bit(block)) != 0;
  }
  if (conflict) {
    return TransferStatus::kConflict;
  }
  if (reads && !is_written) {
    return TransferStatus::kChecksumMismatch;
  }
  for (int i = 0; i < transfer.num_blocks; ++i) {
    const int block = transfer.first_block + i;
    if (reads) {
      ++used.readers[static_cast<std::size_t>(block)];
      checksums[static_cast<std::size_t>(i)] = used.checksums[static_cast<std::size_t>(block)];
    } else {
      used.writing = static_cast<std::uint8_t>(used.writing | bit(block));
      used.written = static_cast<std::uint8_t>(used.written & ~bit(block));
    }
  }
  ++used.in_flight;
  return TransferStatus::kOk;
}

void HomeSpace::end(const Transfer& transfer, TransferStatus status,
                    const BlockChecksums& checksums) {
  Extent& used = extent(transfer.extent);
  KAREZ_CHECK(used.in_flight > 0, "a transfer ends once");
  for (int i = 0; i < transfer.num_blocks; ++i) {
    const int block = transfer.first_block + i;
    if (transfer.direction == TransferDirection::kRead) {
      --used.readers[static_cast<std::size_t>(block)];
      continue;
    }
    used.writing = static_cast<std::uint8_t>(used.writing & ~bit(block));
    if (status == TransferStatus::kOk && used.allocated) {
      used.written = static_cast<std::uint8_t>(used.written | bit(block));
      used.checksums[static_cast<std::size_t>(block)] = checksums[static_cast<std::size_t>(i)];
    }
  }
  --used.in_flight;
  if (!used.allocated && used.in_flight == 0) {
    give_back(transfer.extent);
  }
}

std::int64_t HomeSpace::metadata_bytes() const {
  return static_cast<std::int64_t>(extents_.size() * sizeof(Extent) +
                                   free_ids_.capacity() * sizeof(ExtentId));
}

HomeSpace::Extent& HomeSpace::extent(ExtentId id) {
  KAREZ_CHECK(id.value < extents_.size(), "an extent is one that was allocated");
  return extents_[id.value];
}

void HomeSpace::give_back(ExtentId id) {
  --held_;
  free_ids_.push_back(id);
}

}  // namespace karez
