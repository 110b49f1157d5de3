// Logical blocks: which exist, how often they are referenced and pinned, and which slots hold them.
//
//   free --allocate--> used --last drop_reference, last unpin--> free
//                      used --the same, if it is cached--> idle --reuse--> used
//                                                          idle --allocate, oldest first--> free
//
// A cached block keeps its slots and content when nobody uses it, until they are needed.
//
// With a home tier (Residency) a block need not have all its slots: what is at home may lack them.
//
// One id space for all layer groups: the ids of a group are one range, so an id says its group.
// Does not know sequences; KVCacheManager keeps one reference for each block table entry.
//
// Memory: the slot table takes 4 bytes for each slot, or block at home, and layer group (any group
// may fill everything), a block 20 bytes of counts, 8 of links and one flag, and free lists one bit
// for each slot and block.
//
// Thread: one owner thread; layer() views may be read by others while the owner changes nothing.
// Owns: the pool.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "kv/block_pool.h"
#include "kv/block_table.h"
#include "kv/free_ids.h"
#include "kv/idle_blocks.h"
#include "kv/kv_cache_spec.h"
#include "kv/kv_types.h"
#include "kv/tier/transfer.h"

namespace karez {

class Residency;

// The blocks of one KV head of one layer: block b is entry first_entry + (b - first_id) of the slot
// table.
struct BlockRow {
  int group = 0;
  int layer = 0;
  int kv_head = 0;
  std::uint32_t first_id = 0;
  std::size_t first_entry = 0;
  std::size_t size = 0;
};

class LogicalBlocks {
 public:
  // home_blocks: the blocks, each of one layer and head, that may lie below the fast tier.
  // Requires: spec is valid.
  // Fails: as BlockPool::create(); kInvalidArgument if there would be more blocks than ids.
  static Expected<LogicalBlocks> create(const KVCacheSpec& spec, std::int64_t cap_bytes,
                                        std::int64_t home_blocks = 0);

  // Takes out.size() blocks with all their slots and one reference each, or nothing (false). Idle
  // blocks give up their slots if too few are free.
  // Slots are taken in the order layer, head, block.
  [[nodiscard]] bool allocate(int group, std::span<BlockId> out);
  // Takes kExtentBlocks blocks of one extent, without slots and with one reference each; Residency
  // says where their content is. False: no such blocks are free.
  [[nodiscard]] bool allocate_at_home(int group, std::span<BlockId, kExtentBlocks> out);
  void add_reference(BlockId block);
  void drop_reference(BlockId block);
  void pin(BlockId block);
  void unpin(BlockId block);
  // Copies the bytes of all slots. Requires: blocks of the same group.
  void copy(BlockId from, BlockId to);

  // Requires: the block is referenced and not cached.
  void cache(BlockId block);
  // Requires: the block is cached. Frees it if it is idle.
  void uncache(BlockId block);
  bool is_cached(BlockId block) const { return cached_[block.value]; }
  // As add_reference(), also of an idle block. Requires: the block is cached.
  void reuse(BlockId block);
  // Called inside allocate() when an idle block is about to lose its slots; it is not cached then.
  void on_evict(std::function<void(BlockId)> callback) { on_evict_ = std::move(callback); }

  bool is_shared(BlockId block) const { return references_[block.value] > 1; }
  // The next drop_reference() makes the slots available.
  bool is_last_reference(BlockId block) const {
    return references_[block.value] == 1 && pins_[block.value] == 0;
  }

  std::int64_t slots_per_block(int group) const { return ranges_[index(group)].slots_per_block; }
  const std::vector<LayerGroup>& groups() const { return groups_; }
  int group_of_layer(int layer) const;
  KVLayerView layer(int layer) const;
  const BlockPool& pool() const { return pool_; }

  // Slots that allocate() can give: free ones, clean ones, those of idle blocks that nobody reads.
  std::int64_t num_available_slots() const {
    return pool_.num_free() + idle_unclean_slots_ + num_clean_slots_;
  }
  std::int64_t num_idle_slots() const { return idle_slots_; }
  // Of these, those that are being written home: available when that has ended.
  std::int64_t num_idle_busy_slots() const { return idle_busy_slots_; }
  std::int64_t num_used() const;  // blocks with slots that are not idle
  std::int64_t num_shared() const { return num_shared_; }
  std::int64_t num_pins() const { return num_pins_; }
  std::size_t metadata_bytes() const;

  std::size_t num_ids() const { return references_.size(); }
  std::uint32_t first_id(int group) const { return ranges_[index(group)].first_id; }
  std::size_t num_ids(int group) const { return stride(ranges_[index(group)]); }

  // For Residency, which says what is clean (in the fast tier and at home) and what is busy (in the
  // fast tier, being written home).
  // Borrowed; set before any block is allocated.
  void set_residency(Residency* residency) { residency_ = residency; }
  // [layer, KV head], the order of the slot table within a group.
  std::vector<BlockRow> rows() const;
  BlockPool& pool() { return pool_; }
  SlotId slot_at(std::size_t entry) const { return slots_[entry]; }
  // Ids of a group below first_id + high_water() were handed out, those from there on never.
  std::size_t high_water(int group) const { return ranges_[index(group)].high_water; }
  // The slot is held and becomes the block's. Requires: the entry has none.
  void put_slot(BlockId block, std::size_t entry, SlotId slot);
  // The slot stays held and is nobody's.
  SlotId take_slot(BlockId block, std::size_t entry);
  // So many slots of the block have become clean, or are not any more.
  void add_clean(BlockId block, std::int64_t change);
  // Likewise busy. Its slot is not free when the block is.
  void add_busy(BlockId block, std::int64_t change);
  bool is_used(BlockId block) const {
    return references_[block.value] > 0 || pins_[block.value] > 0;
  }
  // The idle block that nobody used for the longest time loses everything. False: there is none.
  [[nodiscard]] bool drop_oldest_idle();
  // A cached block whose content is lost: nobody finds it any more. It is freed with its last user.
  void forget_content(BlockId block);

  // Empty if every block has expected_references[block] references and each slot of the pool is
  // free or owned by one block; else a description of the first that does not hold.
  std::string check(std::span<const std::uint32_t> expected_references) const;

 private:
  // The blocks of one layer group: ids [first_id, first_id + free.size()).
  struct Range {
    std::uint32_t first_id;
    std::int64_t slots_per_block;  // layers of the group x KV heads
    std::size_t first_entry;       // of the group in slots_
    FreeIds free;
    std::size_t high_water = 0;
  };
  struct Presence {
    std::uint32_t slots = 0;
    std::uint32_t clean = 0;  // of these
    std::uint32_t busy = 0;   // of these, and not clean
    std::int64_t num_unclean() const { return std::int64_t{slots} - clean - busy; }
  };
  struct LayerPlace {
    int group;
    std::size_t first_entry;  // of the layer in slots_
  };

  LogicalBlocks(const KVCacheSpec& spec, std::vector<LayerGroup> groups, BlockPool pool,
                std::int64_t home_blocks);

  static std::size_t index(int group) { return static_cast<std::size_t>(group); }
  Range& range_of(BlockId block);
  void free_if_unused(BlockId block);
  void free(BlockId block);
  void remove_idle(BlockId block);
  void note_presence(BlockId block, std::int64_t slots, std::int64_t clean, std::int64_t busy);
  // Until so many slots are free. Requires: num_available_slots() is as much.
  void evict_until_free(std::int64_t slots);
  // The slots of one block lie this far apart in slots_, from its first entry on.
  static std::size_t stride(const Range& range) {
    return static_cast<std::size_t>(range.free.size());
  }
  std::string check_block(const Range& range, std::uint32_t id, std::uint32_t expected_references,
                          std::vector<bool>& seen) const;

  BlockPool pool_;
  int num_kv_heads_;
  std::vector<LayerGroup> groups_;
  std::vector<Range> ranges_;       // [num_groups]
  std::vector<LayerPlace> places_;  // [num_layers]
  std::vector<SlotId> slots_;       // for each group [layers of the group][num_kv_heads][blocks]
  std::vector<SlotId> taken_;       // scratch of allocate()
  std::vector<std::uint32_t> references_;  // [num_ids]
  std::vector<std::uint32_t> pins_;        // [num_ids]
  std::vector<Presence> presence_;         // [num_ids]
  std::vector<bool> cached_;               // [num_ids]
  IdleBlocks idle_;                        // cached, without references and pins
  std::function<void(BlockId)> on_evict_;  // may be empty
  Residency* residency_ = nullptr;         // may be null: every block has all its slots
  std::int64_t idle_slots_ = 0;
  std::int64_t idle_unclean_slots_ = 0;  // neither clean nor busy
  std::int64_t idle_busy_slots_ = 0;
  std::int64_t num_clean_slots_ = 0;
  std::int64_t num_idle_ = 0;
  std::int64_t num_shared_ = 0;
  std::int64_t num_pins_ = 0;
};

}  // namespace karez
