// Residency: which blocks are in the fast tier and which are only at home, and what moves between.
//
// A logical block is many blocks, one for each layer and KV head; each of them goes its own way:
//
//   fast only --write_home--> clean (fast and home) --room is needed--> home --load--> clean
//
// Fast-only blocks (being filled, not written home yet) are never evicted. A clean block costs no
// write when its slot is taken. What a layer reads is named by need() and is in the fast tier when
// load() returns: prefetch, recency and fairness change the time that takes and nothing else.
//
// Who goes: rows (layer, KV head) that hold more than their share give first, then the row that
// needs room; within a row the block that was needed longest ago. So a long prompt streams through
// the fast tier layer by layer while others keep what they selected. A share is of a row and not of
// a sequence: sequences that a step computes are all needed in the same call, and one that waits
// ages out.
//
// A failed write leaves the block in the fast tier and is tried again later. A failed or late read
// loses the block: load() says so, the sequences that have it must be computed again. Memory: 5
// bytes for each entry of the slot table, 1 byte for each on average for extents, and 8 bytes a
// logical block, besides what the tier says.
// Thread: the KVCacheManager's owner; need() and load() inside a step by the one thread that runs
// between selection and attention.
// Owns: the queue and its tier. Borrows: the logical blocks.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/clock.h"
#include "kv/kv_types.h"
#include "kv/logical_blocks.h"
#include "kv/tier/transfer_queue.h"

namespace karez {

struct ResidencyStats {
  std::int64_t home_bytes_total = 0;
  std::int64_t home_bytes_used = 0;
  std::int64_t blocks_clean = 0;   // in the fast tier and at home
  std::int64_t bytes_read = 0;     // from home
  std::int64_t bytes_written = 0;  // to home
  std::int64_t blocks_needed = 0;  // that layers asked for, each once a layer and step
  std::int64_t demand_misses = 0;  // of these, not in the fast tier
  std::int64_t evictions = 0;
  std::int64_t blocks_lost = 0;  // reads that failed, or found no room
  std::int64_t write_failures = 0;
  double stall_seconds = 0;  // in load()
};

class Residency {
 public:
  // clock: the tier's; must outlive this.
  Residency(LogicalBlocks& blocks, std::unique_ptr<Tier> home, const Clock& clock);
  ~Residency();
  Residency(const Residency&) = delete;
  Residency& operator=(const Residency&) = delete;

  // Blocks whose content is complete go home in the background. Those that are there or on their
  // way are left out.
  void write_home(BlockId block);
  // Takes results in and moves along what waits. After each step.
  void advance();

  // Free slots, as many as can be had without losing anything; waits for writes if they help.
  void make_room(std::int64_t slots);
  // Waits until what is on its way home has arrived, or some seconds.
  void settle();

  // Before the layers of a step.
  void begin_step() { step_start_ = now_ + 1; }
  // What one layer reads: begin_layer(), need() for each block, load(). Requires: the blocks are
  // used, and of the layer's group.
  void begin_layer(int layer);
  // True: it has to be loaded, and was not named in this call before.
  bool need(int kv_head, BlockId block);
  // Returns the blocks that are lost, each once; they have some slot with some content until
  // end_step().
  std::span<const BlockId> load();
  void end_step();

  // Before the block is written to again: it is wholly in the fast tier and not at home any more.
  // False: it is lost.
  [[nodiscard]] bool reopen(BlockId block);
  // The block is freed.
  void forget(BlockId block);

  // Whether any of its blocks is at home, or on the way.
  bool is_any_home(BlockId block) const;
  bool is_home(std::size_t entry) const { return (state_[entry] & kHome) != 0; }
  // Whether the last step has named it.
  bool was_read(int layer, int kv_head, BlockId block) const {
    const std::size_t row =
        first_row_of_layer_[static_cast<std::size_t>(layer)] + static_cast<std::size_t>(kv_head);
    return stamp_[entry_of(rows_[row], block.value)] >= step_start_;
  }
  bool is_lost(BlockId block) const { return lost_blocks_.contains(block.value); }
  // Slots that are nobody's: those of freed blocks in transfers, and a spare one.
  std::int64_t num_loose_slots() const { return static_cast<std::int64_t>(loose_.size()) + 1; }
  ResidencyStats stats() const;
  std::string describe() const { return queue_.tier().describe(); }
  std::size_t metadata_bytes() const;

 private:
  static constexpr std::uint8_t kHome = 1;
  static constexpr std::uint8_t kWriting = 2;
  struct Row {
    BlockRow blocks;
    std::size_t first_extent = 0;  // of the row in extents_
    std::int64_t clean = 0;
  };
  struct Miss {
    std::uint32_t row;
    std::uint32_t block;
    friend auto operator<=>(const Miss&, const Miss&) = default;
  };
  struct Age {
    std::uint32_t stamp;
    std::uint32_t block;
    friend auto operator<=>(const Age&, const Age&) = default;
  };

  static std::size_t entry_of(const Row& row, std::uint32_t block) {
    return row.blocks.first_entry + (block - row.blocks.first_id);
  }
  ExtentId& extent_of(const Row& row, std::uint32_t block) {
    return extents_[row.first_extent + (block - row.blocks.first_id) / kExtentBlocks];
  }
  std::span<Row> rows_of(BlockId block);
  std::span<const Row> rows_of(BlockId block) const {
    return const_cast<Residency*>(this)->rows_of(block);
  }
  SlotId slot_of(const std::byte* memory) const;
  void set_clean(Row& row, BlockId block, bool clean);
  // In the fast tier alone.
  bool is_fast_only(const Row& row, std::uint32_t block) const {
    const std::size_t entry = entry_of(row, block);
    return state_[entry] == 0 && !blocks_.slot_at(entry).is_none();
  }

  // residency_write.cpp
  void pump_writes();
  bool submit_write(Row& row, std::uint32_t first, std::uint32_t count);
  void take_results();
  void take_write(const TransferResult& result);
  void free_extent_if_unused(Row& row, std::uint32_t block);

  // residency_load.cpp
  void take_read(const TransferResult& result);
  void submit_reads(std::uint32_t row, std::span<const Miss> misses);
  void lose(Row& row, BlockId block);
  // Frees slots until `count` are, by the rule at the top; takes as many as there are.
  void acquire(std::size_t row, std::size_t count, std::vector<SlotId>& out);
  std::int64_t evict_from(Row& row, std::int64_t count);

  LogicalBlocks& blocks_;
  const Clock& clock_;
  TransferQueue queue_;
  std::vector<Row> rows_;
  std::vector<std::size_t> first_row_of_layer_;
  std::vector<std::uint8_t> state_;   // [entries of the slot table]
  std::vector<std::uint32_t> stamp_;  // [same], of the last call that needed it
  std::vector<ExtentId> extents_;     // [rows][blocks / kExtentBlocks]
  std::uint32_t now_ = 1;
  std::uint32_t step_start_ = 2;  // no call of the last step is earlier
  SlotId hole_;                   // what lost blocks point to until the end of the step

  std::deque<std::uint32_t> to_write_;
  std::vector<bool> wants_write_;      // [ids]; an id in to_write_ without it is stale
  std::int64_t writes_in_flight_ = 0;  // blocks
  Clock::TimePoint writes_resume_;     // after failures

  std::size_t layer_first_row_ = 0;  // of the layer at hand
  std::vector<Miss> misses_;
  std::vector<TransferId> reads_;
  std::size_t reads_in_flight_ = 0;
  std::vector<BlockId> lost_;                                 // of this load()
  std::vector<std::pair<std::size_t, std::uint32_t>> holes_;  // entry, block
  std::unordered_set<std::uint32_t> lost_blocks_;
  std::unordered_set<std::uint32_t> loose_;  // slots of freed blocks that transfers still use

  std::vector<TransferResult> results_;
  std::vector<Transfer> released_;
  std::vector<SlotId> slots_scratch_;
  std::vector<Age> ages_;
  std::vector<bool> exhausted_;  // [rows]
  ResidencyStats counters_;
};

}  // namespace karez
