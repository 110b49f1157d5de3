// One anonymous memory mapping that never grows: the storage behind a hard cap.
//
// Asks for transparent huge pages, because blocks are read in random order and a 4 KiB page would
// cost a TLB miss for each. Pages become resident when first touched.
// Thread: immutable after create(); the bytes are the caller's to synchronise.
// Owns: the mapping, until destruction; or a share of its owner.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "base/status.h"

namespace karez {

class Arena {
 public:
  // bytes > 0; the mapping starts at a multiple of 2 MiB and is zero.
  // Fails: kResourceExhausted if it is more than memory_limit_bytes(), or the system refuses.
  static Expected<Arena> create(std::size_t bytes);

  // Over memory that `owner` keeps: shared with other processes, say. The arena keeps the owner.
  static Arena borrow(std::span<std::byte> bytes, std::shared_ptr<void> owner);

  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();

  std::span<std::byte> bytes() const { return {data_, size_}; }

 private:
  Arena(void* mapping, std::size_t mapping_size, std::byte* data, std::size_t size)
      : mapping_(mapping), mapping_size_(mapping_size), data_(data), size_(size) {}

  void* mapping_ = nullptr;
  std::size_t mapping_size_ = 0;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::shared_ptr<void> owner_;  // if the mapping is not ours
};

}  // namespace karez
