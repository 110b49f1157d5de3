// Where a sequence's tokens are, and how attention turns that into addresses.
//
//   position p  ->  block table of the layer's group, entry p / 16  ->  BlockId
//   BlockId     ->  KVLayerView::slot(head, block)                   ->  bytes in the fast tier
//
// Views only: they own nothing and are valid until the next change of the KVCacheManager that gave
// them (extend, truncate, close of that sequence).
// Thread: reading is free for all threads while the owner does not change the manager.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kv/kv_types.h"

namespace karez {

// The block table of one sequence in one layer group: entry i holds tokens [16 i, 16 i + 16).
// Entries that fell out of a sliding window are BlockId::none(). Where windows of it were
// compressed, entries hold 16 pairs of what was kept, and the tokens behind stand
// KVCacheManager::num_gone() tokens further to the front.
using BlockTableView = std::span<const BlockId>;

// Entries [begin, end) of a table that are archived pages: 16 pairs each in 4 bits
// (attention/archive_page.h), several in one block. Entry e is page pages[e - begin] of its block.
struct ArchivedEntries {
  int begin = 0;
  int end = 0;
  std::span<const std::uint8_t> pages;  // [end - begin]

  int count() const { return end - begin; }
  bool contains(int entry) const { return entry >= begin && entry < end; }
  int page_of(int entry) const { return pages[static_cast<std::size_t>(entry - begin)]; }
};

// The slots of one layer, for every KV head and logical block.
class KVLayerView {
 public:
  KVLayerView(std::byte* base, std::size_t slot_bytes, const SlotId* slots, std::size_t head_stride)
      : base_(base), slot_bytes_(slot_bytes), slots_(slots), head_stride_(head_stride) {}

  // Slots of one head, indexed by the values of the BlockIds of this layer's group.
  const SlotId* slots_of_head(int kv_head) const {
    return slots_ + static_cast<std::size_t>(kv_head) * head_stride_;
  }
  std::byte* slot(int kv_head, BlockId block) const {
    return base_ + slot_bytes_ * slots_of_head(kv_head)[block.value].value;
  }
  std::byte* base() const { return base_; }
  std::size_t slot_bytes() const { return slot_bytes_; }

 private:
  std::byte* base_;
  std::size_t slot_bytes_;
  const SlotId* slots_;  // [num_kv_heads][head_stride]
  std::size_t head_stride_;
};

}  // namespace karez
