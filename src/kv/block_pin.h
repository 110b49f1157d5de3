// A promise that a set of logical blocks stays where it is: while a BlockPin lives, its blocks keep
// their slots, even if every sequence that uses them is closed.
//
// Move-only. Must not outlive the KVCacheManager that made it.
// Thread: created and destroyed on the manager's owner thread.
#pragma once

#include <utility>
#include <vector>

#include "kv/kv_types.h"

namespace karez {

class KVCacheManager;

class BlockPin {
 public:
  BlockPin() = default;
  BlockPin(BlockPin&& other) noexcept
      : manager_(std::exchange(other.manager_, nullptr)), blocks_(std::move(other.blocks_)) {}
  BlockPin& operator=(BlockPin&& other) noexcept {
    std::swap(manager_, other.manager_);
    std::swap(blocks_, other.blocks_);
    return *this;
  }
  BlockPin(const BlockPin&) = delete;
  BlockPin& operator=(const BlockPin&) = delete;
  ~BlockPin() { release(); }

  // Unpins now instead of at destruction.
  void release();

 private:
  friend class KVCacheManager;  // the only maker of pins
  BlockPin(KVCacheManager* manager, std::vector<BlockId> blocks)
      : manager_(manager), blocks_(std::move(blocks)) {}

  KVCacheManager* manager_ = nullptr;
  std::vector<BlockId> blocks_;
};

}  // namespace karez
