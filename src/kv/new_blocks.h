// Logical blocks with all their slots that no sequence has yet: what compression packs pairs into.
// They go back to the pool with this object, unless KVCacheManager::compress() takes them over.
//
// Move-only. Must not outlive the KVCacheManager that made it.
// Thread: created, used up and destroyed on the manager's owner thread.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "kv/kv_types.h"

namespace karez {

class KVCacheManager;

class NewBlocks {
 public:
  NewBlocks() = default;
  NewBlocks(NewBlocks&& other) noexcept
      : manager_(std::exchange(other.manager_, nullptr)), blocks_(std::move(other.blocks_)) {}
  NewBlocks& operator=(NewBlocks&& other) noexcept {
    std::swap(manager_, other.manager_);
    std::swap(blocks_, other.blocks_);
    return *this;
  }
  NewBlocks(const NewBlocks&) = delete;
  NewBlocks& operator=(const NewBlocks&) = delete;
  ~NewBlocks() { release(); }

  std::span<const BlockId> blocks() const { return blocks_; }
  // Gives them back now instead of at destruction.
  void release();

 private:
  friend class KVCacheManager;  // the only maker
  NewBlocks(KVCacheManager* manager, std::vector<BlockId> blocks)
      : manager_(manager), blocks_(std::move(blocks)) {}

  KVCacheManager* manager_ = nullptr;
  std::vector<BlockId> blocks_;
};

}  // namespace karez
