// A fixed number of equal KV slots in the fast tier. This class *is* the hard cap: it maps all its
// memory once and never grows.
//
// Hands out the lowest free slots, ascending, so that slots taken together lie next to each other
// where the pool is not fragmented: attention streams over them.
//
//   free --allocate--> held --release--> free
//
// Does not know sequences, logical blocks, hashes or other tiers (see KVCacheManager).
// Thread: one owner thread for allocate and release. data() of a held slot may be used from any
// thread that the owner has handed the slot to.
// Owns: the arena with the slots.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/arena.h"
#include "base/status.h"
#include "kv/free_ids.h"
#include "kv/kv_types.h"

namespace karez {

class BlockPool {
 public:
  // floor(cap_bytes / slot_bytes) slots of slot_bytes (a multiple of 64), 64-byte aligned.
  // Requires: slot_bytes > 0. Does not touch the memory: a giant cap fails at once.
  // Fails: kResourceExhausted if the cap holds no slot or the system has no memory for it;
  //        kInvalidArgument if it would need more slots than an id can name.
  static Expected<BlockPool> create(std::size_t slot_bytes, std::int64_t cap_bytes);

  // Takes out.size() free slots, or none.
  // False: fewer are free, `out` is untouched (not an error: the caller evicts, preempts or waits).
  [[nodiscard]] bool allocate(std::span<SlotId> out);
  // Requires: slot is held.
  void release(SlotId slot) { free_.give_back(slot.value); }

  std::byte* data(SlotId slot) const { return base_ + slot_bytes_ * slot.value; }
  std::byte* base() const { return base_; }
  std::size_t slot_bytes() const { return slot_bytes_; }

  std::int64_t num_slots() const { return free_.size(); }
  std::int64_t num_free() const { return free_.num_free(); }
  std::int64_t num_held() const { return num_slots() - num_free(); }
  std::int64_t capacity_bytes() const {
    return num_slots() * static_cast<std::int64_t>(slot_bytes_);
  }
  bool is_held(SlotId slot) const { return !free_.is_free(slot.value); }
  std::size_t metadata_bytes() const { return free_.metadata_bytes(); }

 private:
  BlockPool(Arena arena, std::size_t slot_bytes, std::int64_t num_slots);

  Arena arena_;
  std::byte* base_;
  std::size_t slot_bytes_;
  FreeIds free_;
};

}  // namespace karez
