// Fast memory for tests of transfers: slots of one block, with guard bytes around each.
//
// Thread: one, and whoever is lent a slot. Owns: the bytes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "kv/tier/transfer.h"

namespace karez::test {

class FastMemory {
 public:
  // Slots start `offset` bytes (a multiple of 64) behind a multiple of 4096.
  FastMemory(std::size_t block_bytes, int num_slots, std::size_t offset = 0)
      : block_bytes_(block_bytes),
        stride_((kGuardBytes + block_bytes + 4095) / 4096 * 4096 + offset),
        bytes_(static_cast<std::size_t>(num_slots + 1) * (stride_ + 4096), kGuard) {
    auto address = reinterpret_cast<std::uintptr_t>(bytes_.data());
    first_ = bytes_.data() + ((4096 - address % 4096) % 4096) + offset;
    // Every slot has the same remainder.
    stride_ = (stride_ + 4095) / 4096 * 4096;
  }

  std::byte* slot(int index) { return first_ + static_cast<std::size_t>(index) * stride_; }

  // Bytes that depend on the seed only.
  void fill(int index, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    for (std::size_t i = 0; i < block_bytes_; ++i) {
      slot(index)[i] = static_cast<std::byte>(random());
    }
  }
  bool holds(int index, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    return std::all_of(slot(index), slot(index) + block_bytes_,
                       [&](std::byte seen) { return seen == static_cast<std::byte>(random()); });
  }
  bool guards_are_whole(int index) {
    const std::byte* end = slot(index) + block_bytes_;
    return std::all_of(end, end + kGuardBytes, [](std::byte seen) { return seen == kGuard; });
  }

 private:
  static constexpr std::size_t kGuardBytes = 512;
  static constexpr std::byte kGuard{0xA5};

  std::size_t block_bytes_;
  std::size_t stride_;
  std::vector<std::byte> bytes_;
  std::byte* first_ = nullptr;
};

}  // namespace karez::test
