// Selection for the sparse rows of a step: scans the key index, then picks blocks (BlockSelector).
//
// The scan of one (row, KV head) is cut into chunks of kScanBlocks blocks at fixed positions, so
// that its results do not depend on who scans what. With few rows each chunk is an item of its own;
// whoever finishes the last chunk of a selection makes it. Contexts of more than
// SparseOptions::two_level_blocks blocks are scanned in two levels (coarse_scan.h), each selection
// by one thread. Thread: plan() by one thread while no other call runs; run() by all threads at
// once, without locks; lists are stable from the end of run() until the next run() or plan(). Owns:
// masses of one layer and lists of one layer, sized by plan().
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "attention/key_index.h"
#include "attention/rows_view.h"
#include "attention/sparse_rows.h"
#include "base/cpu_features.h"
#include "kv/block_table.h"

namespace karez {

// What one row attends to in one KV head of the layer at hand.
struct SelectedBlocks {
  int sequence;  // index in the step's sequences
  int position;
  int kv_head;
  std::span<const std::int32_t> blocks;  // ascending entries of the sequence's block table
};

// Called between selection and attention, when blocks can still be brought to their slots.
class SelectionListener {
 public:
  virtual ~SelectionListener() = default;
  // Once for each layer of a step, by one thread, while the others wait. `selected` is empty where
  // every row attends to everything: dense layers, sliding windows, steps without sparse rows.
  // It may change the slots of blocks that no thread reads; it must not change block tables.
  virtual void on_selected(int layer, std::span<const SelectedBlocks> selected) = 0;
};

struct SelectorShape {
  int num_layers = 1;
  int num_kv_heads = 1;
  int group = 1;  // query heads per KV head
  int head_dim = 64;
  float score_scale = 1.0F;  // scale x log2(e)
  int max_threads = 1;
  CpuLevel cpu_level = CpuLevel::kPortable;
};

class RowSelector {
 public:
  RowSelector(const SelectorShape& shape, const SparseOptions& options);
  ~RowSelector();

  // tables: those of the layer group without a window, index table_group of each sequence.
  void plan(std::span<const SequenceRows> sequences, std::size_t table_group);
  std::span<const SparseRow> rows() const;

  // True on exactly one thread, when all lists of the layer are there.
  // queries: f32 [num_rows][num_heads * head_dim].
  bool run(int layer, const KeyIndexView& index, RowsView queries, int thread);

  std::span<const std::int32_t> list(const SparseRow& row, int kv_head) const;
  // The lists of all rows and KV heads.
  std::span<const SelectedBlocks> selected() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace karez
