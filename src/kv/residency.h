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
// Who goes: rows (layer, KV head) above their share give first, then the row that needs room;
// within a row the block that was needed longest ago. A row's share is what its last call
// needed, and of what is left over a part as large as its part of the blocks that enter: where
// the selection changes much, more of the past is kept. Where rows need more than there is,
// shares shrink in proportion: so a long prompt streams through the fast tier layer by layer
// while others keep what they selected. A share is of a row and not of a sequence: sequences
// that a step computes are all needed in the same call, and one that waits ages out.
//
// A failed write leaves the block in the fast tier and is tried again later. A failed or late read
// loses the block: load() says so, the sequences that have it must be computed again.
//
// hint() names what may be needed soon, prefetch() reads it while the step goes on:
//
//   home --prefetch--> being read --arrives--> clean --need()--> useful
//                         |  need(): late, load() waits       --evicted, freed--> wasted
//
// It takes free slots and those of blocks that this step does not need. Its own failures lose
// nothing, and a load takes its slots if it finds no others: hints change what is in the fast tier
// and never what a step computes.
//
// Memory: 5 bytes for each entry of the slot table, 1 byte for each on average for extents, and 8
// bytes a logical block, besides what the tier says; about 64 for each block being prefetched.
// Thread: the KVCacheManager's owner; need(), load(), hint() and prefetch() inside a step by the
// one thread that runs between selection and attention. Owns: the queue and its tier. Borrows: the
// logical blocks.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "kv/kv_types.h"
#include "kv/logical_blocks.h"
#include "kv/lookahead.h"
#include "kv/residency_stats.h"
#include "kv/tier/link_rate.h"
#include "kv/tier/transfer_queue.h"

namespace karez {

class Residency {
 public:
  // clock: the tier's; must outlive this. first_call: another one only for tests.
  Residency(LogicalBlocks& blocks, std::unique_ptr<Tier> home, const Clock& clock,
            std::uint32_t first_call = 1);
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
  // Waits until what waits for its way home, or is on its way from or to there, has arrived, or
  // some seconds. After these it waits again only when the tier has answered.
  void settle();

  // Before the layers of a step.
  void begin_step();
  // What one layer reads: begin_layer(), need() for each block, load(). Requires: the blocks are
  // used, and of the layer's group.
  void begin_layer(int layer);
  // True: it is not there, and was not named in this call before.
  bool need(int kv_head, BlockId block);
  // Returns the blocks that are lost, each once; they have some slot with some content until
  // end_step().
  std::span<const BlockId> load();
  void end_step();

  // residency_prefetch.cpp
  // The block may be needed soon; most useful first. O(1); takes effect in prefetch(). Requires: as
  // need(); after load() of the layer at hand.
  void hint(int layer, int kv_head, BlockId block, LookaheadSource source);
  // Begins to read what was hinted since the last call and is not there: in one go, as far as the
  // cap and the victims go.
  void prefetch();
  // Between steps, without the cap: what a new sequence's first step will read. Gives their number.
  std::int64_t prefetch_between_steps();
  // Bytes that prefetch() may read in a step. 0: what the link moves in 0.8 of the time of a step,
  // both as measured; the rest is for demand and writes.
  void set_fetch_cap(std::int64_t bytes_per_step) { fetch_cap_bytes_ = bytes_per_step; }
  std::int64_t fetch_cap() const;  // of the step at hand
  // Blocks that a call needed of late and that were not there but for fetches: how many to hint.
  float num_entering(int layer, int kv_head) const;

  // What moves, and when loads wait; null: no trace; borrowed.
  void set_trace(TraceWriter* trace);

  // None: it is not at home, or not yet.
  std::optional<HomePlace> place_at_home(int layer, int kv_head, BlockId block) const;
  // The extent has the blocks from `first` on already. Requires: of
  // LogicalBlocks::allocate_at_home().
  void adopt(int layer, int kv_head, BlockId first, ExtentId extent);

  // Before the block is written to again: it is wholly in the fast tier and not at home any more.
  // False: it is lost, or is still being written home.
  [[nodiscard]] bool reopen(BlockId block);
  // The block is freed.
  void forget(BlockId block);

  // Whether any of its blocks is at home, or on the way.
  bool is_any_home(BlockId block) const;
  bool is_home(std::size_t entry) const { return (state_[entry] & kHome) != 0; }
  bool is_writing(std::size_t entry) const { return (state_[entry] & kWriting) != 0; }
  // Whether the last step has named it.
  bool was_read(int layer, int kv_head, BlockId block) const;
  bool is_lost(BlockId block) const { return lost_blocks_.contains(block.value); }
  // Slots that are nobody's: those of freed blocks in transfers, those that are read into ahead of
  // need, and a spare one.
  std::int64_t num_loose_slots() const;
  // Those read into ahead of need: settle() makes room of them.
  std::int64_t num_fetching_slots() const { return static_cast<std::int64_t>(fetches_.size()); }
  ResidencyStats stats() const;
  std::string describe() const { return queue_.tier().describe(); }
  std::size_t metadata_bytes() const;

 private:
  static constexpr std::uint64_t kFetchOwner = 1;  // of transfers; those of demand have none
  static constexpr std::uint8_t kHome = 1;
  static constexpr std::uint8_t kWriting = 2;
  static constexpr std::uint8_t kReading = 4;  // prefetch under way: home, and no slot yet
  static constexpr std::uint8_t kFetched = 8;  // prefetched and not needed yet
  // Hinted since it was last needed. With a slot its stamp may be a guess, without one it is in
  // hints_.
  static constexpr std::uint8_t kHinted = 16;
  static constexpr std::uint8_t kGuess = kFetched | kHinted;
  static constexpr unsigned kSourceShift = 5;  // the source of kReading and kFetched, above these
  struct Row {
    BlockRow blocks;
    std::size_t first_extent = 0;  // of the row in extents_
    std::int64_t clean = 0;
    std::uint32_t begun = 0;  // the last call that read the row
    int needed = 0;           // blocks that the last call, or the one at hand, needs
    int entered = 0;          // blocks that the call at hand needs and the one before did not have
    float entering = 0;       // the same of late, smoothed
  };
  struct Miss {
    std::uint32_t row;
    std::uint32_t block;
    friend auto operator<=>(const Miss&, const Miss&) = default;
  };
  struct Hint {
    std::uint32_t row;
    std::uint32_t block;
    LookaheadSource source;
  };
  struct Fetch {
    SlotId slot;
    TransferId transfer = 0;
    bool is_needed = false;  // by the load at hand
  };
  struct Age {
    std::uint32_t stamp;
    std::uint32_t block;
    friend auto operator<=>(const Age&, const Age&) = default;
  };

  static std::size_t entry_of(const Row& row, std::uint32_t block) {
    return row.blocks.first_entry + (block - row.blocks.first_id);
  }
  const Row& row_at(int layer, int kv_head) const {
    return rows_[first_row_of_layer_[static_cast<std::size_t>(layer)] +
                 static_cast<std::size_t>(kv_head)];
  }
  ExtentId& extent_of(const Row& row, std::uint32_t block);
  std::span<Row> rows_of(BlockId block);
  std::span<const Row> rows_of(BlockId block) const {
    return const_cast<Residency*>(this)->rows_of(block);
  }
  void set_identity(Transfer& transfer, const Row& row, std::uint32_t block) const;
  Row& row_of(const TransferIdentity& identity) {
    return rows_[first_row_of_layer_[identity.layer] + identity.head];
  }
  SlotId slot_of(const std::byte* memory) const;
  std::int64_t bytes_of(std::int64_t blocks) const;
  void set_clean(Row& row, BlockId block, bool clean);
  // In the fast tier alone.
  bool is_fast_only(const Row& row, std::uint32_t block) const {
    const std::size_t entry = entry_of(row, block);
    return state_[entry] == 0 && !blocks_.slot_at(entry).is_none();
  }

  // residency_write.cpp
  void wait_for_transfers(bool submits_writes);
  bool has_writes_waiting();
  void pump_writes();
  bool submit_write(Row& row, std::uint32_t first, std::uint32_t count);
  void take_results();
  void take_write(const TransferResult& result);
  void free_extent_if_unused(Row& row, std::uint32_t block);

  // residency_load.cpp
  void renumber_calls();
  void begin_call();
  void take_read(const TransferResult& result);
  void submit_misses();
  void note_entered();
  void submit_reads(std::uint32_t row, std::span<const Miss> misses);
  void wait_for_reads();
  void lose(Row& row, BlockId block);

  // residency_evict.cpp
  // Frees slots until `count` are, by the rule at the top; takes as many as there are.
  void acquire(std::size_t row, std::size_t count, TransferPriority priority,
               std::vector<SlotId>& out);
  // before: for a prefetch, when the victims were needed or hinted last; 0: for a load.
  std::int64_t evict_from(Row& row, std::int64_t count, std::uint32_t before);
  bool may_go(const Row& row, std::size_t entry, std::uint32_t before) const;
  // What all rows hold and need.
  struct Totals {
    std::int64_t clean = 0;
    std::int64_t needed = 0;
    double entering = 0;
  };
  Totals totals() const;
  static std::int64_t share_of(const Row& row, const Totals& totals, std::size_t num_rows);

  // residency_prefetch.cpp
  void submit_fetches(std::uint32_t row, std::span<Hint> hints);
  void take_fetch(const TransferResult& result);
  void abandon_fetch(std::size_t entry);
  void wait_for_fetches();
  void note_wasted(std::size_t entry);
  PrefetchStats::BySource& source_counts(std::size_t entry);

  LogicalBlocks& blocks_;
  const Clock& clock_;
  TransferQueue queue_;
  std::vector<Row> rows_;
  std::vector<std::size_t> first_row_of_layer_;
  std::vector<std::uint8_t> state_;   // [entries of the slot table]
  std::vector<std::uint32_t> stamp_;  // [same], of the last call that needed it
  std::vector<ExtentId> extents_;     // [rows][blocks / kExtentBlocks]
  std::uint32_t now_;                 // the last call
  std::uint32_t step_start_;          // no call of the last step is earlier
  std::uint32_t previous_step_start_;
  SlotId hole_;  // what lost blocks point to until the end of the step

  std::deque<std::uint32_t> to_write_;
  std::vector<bool> wants_write_;      // [ids]; an id in to_write_ without it is stale
  std::int64_t writes_in_flight_ = 0;  // blocks
  Clock::TimePoint writes_resume_;     // after failures
  bool has_paused_ = false;            // settle() has, and no write has succeeded since
  bool is_hung_ = false;               // settle() gave up, and the tier has not answered since

  std::size_t layer_first_row_ = 0;  // of the layer at hand
  std::vector<Miss> misses_;
  std::vector<TransferId> reads_;
  std::size_t reads_in_flight_ = 0;
  std::vector<BlockId> lost_;                                 // of this load()
  std::vector<std::pair<std::size_t, std::uint32_t>> holes_;  // entry, block
  std::unordered_set<std::uint32_t> lost_blocks_;
  std::unordered_set<std::uint32_t> loose_;  // slots of freed blocks that transfers still use

  bool layer_is_read_ = false;                      // something was needed
  std::vector<Hint> hints_;                         // most useful first
  std::unordered_map<std::size_t, Fetch> fetches_;  // index: entry
  std::int64_t fetching_blocks_ = 0;                // without a result yet, given up ones too
  std::vector<TransferId> late_;
  std::int64_t late_blocks_ = 0;   // needed, without a result yet
  std::vector<Miss> failed_late_;  // of these, failed
  std::vector<Hint> hints_scratch_;
  std::int64_t fetch_cap_bytes_ = 0;
  std::int64_t fetch_bytes_left_ = 0;  // in this step
  LinkRate link_;
  std::optional<Clock::TimePoint> step_begin_;
  double step_seconds_ = 0;  // of late, smoothed
  TraceWriter* trace_ = nullptr;

  std::vector<TransferResult> results_;
  std::vector<Transfer> released_;
  std::vector<SlotId> slots_scratch_;
  std::vector<Age> ages_;
  std::vector<bool> exhausted_;  // [rows]
  ResidencyStats counters_;
};

}  // namespace karez
