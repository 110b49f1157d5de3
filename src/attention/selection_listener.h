// What a layer's sparse rows have selected, and who is told of it before they attend.
//
// The listener may bring blocks to their slots, and it may shorten lists: a row then attends to
// what is left and nothing else. Lists that it leaves alone give the same bits as without it.
// Thread: on_selected() by one thread, while the others wait. Owns: nothing; the spans belong to
// RowSelector and are good until on_selected() returns.
#pragma once

#include <cstdint>
#include <span>

namespace karez {

// What one row attends to in one KV head of the layer at hand.
struct SelectedBlocks {
  int sequence;  // index in the step's sequences
  int position;  // of the row; not its place in a table that is shorter (SequenceRows::num_gone)
  int kv_head;
  bool is_hint;  // one of SequenceRows::num_hint_rows
  // Ascending entries of the sequence's block table. Entries may be dropped, in place and in order;
  // the last one, the row's own block, stays.
  std::span<std::int32_t> blocks;
  // Parallel to `blocks` as they were selected: the estimated share of the row's attention that a
  // block has, 0 to 1, mean over the query heads; of two levels the share among the blocks that
  // were scanned, which is larger. Empty unless SparseOptions::list_masses.
  std::span<const float> masses;
  // The next best blocks, best first: at most SparseOptions::runners_up.
  std::span<const std::int32_t> runners_up;
};

// What one row is expected to select in a later layer, and is not in the fast tier.
struct RankedBlocks {
  int sequence;
  int position;
  int kv_head;
  std::span<const std::int32_t> blocks;  // entries of the block table, most useful first
};

// Called between selection and attention, when blocks can still be brought to their slots.
class SelectionListener {
 public:
  virtual ~SelectionListener() = default;
  // Once for each layer of a step. `selected` is empty where every row attends to everything: dense
  // layers, sliding windows, steps without sparse rows.
  // It may change the slots of blocks that no thread reads; it must not change block tables.
  virtual void on_selected(int layer, std::span<SelectedBlocks> selected) = 0;

  // For a layer that has not run yet, from estimated queries (SparseOptions::rank_ahead); after
  // on_selected() of the layer before. How many blocks to name for a row in a KV head: from any
  // thread.
  virtual int num_to_rank(int /*layer*/, int /*kv_head*/) const { return 0; }
  // By one thread, while the others wait.
  virtual void on_ranked(int /*layer*/, std::span<const RankedBlocks> /*ranked*/) {}
};

}  // namespace karez
