// Blocks that nobody uses but whose content is still worth something, oldest first.
//
// An intrusive doubly linked list over block ids: O(1) for all calls, no allocation after creation,
// 8 bytes for each id.
// Thread: one owner thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kv/kv_types.h"

namespace karez {

class IdleBlocks {
 public:
  explicit IdleBlocks(std::size_t num_ids) : links_(num_ids) {}

  // As the newest. Requires: not contained.
  void push_newest(BlockId block);
  // Requires: contained.
  void remove(BlockId block);
  // Of the one that became idle first; none if there is none.
  BlockId oldest() const { return oldest_; }
  bool contains(BlockId block) const {
    return newest_ == block || !links_[block.value].newer.is_none();
  }
  std::size_t metadata_bytes() const { return links_.capacity() * sizeof(Links); }

 private:
  struct Links {
    BlockId older;
    BlockId newer;
  };

  std::vector<Links> links_;  // [num_ids]; both none outside the list
  BlockId oldest_;
  BlockId newest_;
};

}  // namespace karez
