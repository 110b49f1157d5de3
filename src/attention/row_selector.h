// Selection for the sparse rows of a step: scans the key index, then picks blocks (BlockSelector).
//
// The scan of one (row, KV head) is cut into chunks of kScanBlocks blocks at fixed positions, so
// that its results do not depend on who scans what. With few rows each chunk is an item of its own;
// whoever finishes the last chunk of a selection makes it. Contexts of more than
// SparseOptions::two_level_blocks blocks are scanned in two levels (coarse_scan.h), each selection
// by one thread. Thread: plan() by one thread while no other call runs; run() by all threads at
// once, without locks; lists are stable from the end of run() until the next run() or plan(), but
// for what a SelectionListener drops in between. Owns: masses of one layer and lists of one layer,
// sized by plan().
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "attention/key_index.h"
#include "attention/rows_view.h"
#include "attention/selection_listener.h"
#include "attention/sparse_rows.h"
#include "base/cpu_features.h"
#include "kv/block_table.h"

namespace karez {

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

  // row: index in rows(). What the listener has left of the list.
  std::span<const std::int32_t> list(int row, int kv_head) const;
  // The lists of all rows and KV heads.
  std::span<SelectedBlocks> selected();
  // Their entries that are archived pages.
  std::int64_t num_archived() const;
  // Entries that have been dropped from them.
  std::int64_t num_dropped() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace karez
