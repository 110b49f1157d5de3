// Which blocks that are not in the fast tier the rows will select in a layer, from queries that are
// estimated before the layer runs.
//
// Not a selection: a guess, cheap enough to be made beside it. Two levels, as in coarse_scan.h: the
// coarse records of all blocks, then the records of the best of those that have no slot. What is in
// the fast tier already needs no guess and costs nothing.
// Thread: plan() by one thread while no other call runs; run() by all threads at once, without
// locks; nobody changes slots meanwhile. Owns: its lists and scratch.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "attention/key_index.h"
#include "attention/row_selector.h"
#include "attention/rows_view.h"
#include "attention/selection_listener.h"
#include "kv/block_table.h"

namespace karez {

class RowRanker {
 public:
  RowRanker(const SelectorShape& shape, const SparseOptions& options);
  ~RowRanker();

  // rows: of the step; hint rows are passed over. Both must stay valid until the last run().
  void plan(std::span<const SequenceRows> sequences, std::size_t table_group,
            std::span<const SparseRow> rows);

  // True on exactly one thread, when all lists of the layer are there. queries: estimated for the
  // layer, f32 [num_rows][num_heads * head_dim]. wanted: of each KV head, blocks to name for a row,
  // [num_kv_heads]. Requires: index.has_coarse().
  bool run(int layer, const KVLayerView& blocks, const KeyIndexView& index, RowsView queries,
           std::span<const int> wanted, int thread);

  // Of the last layer that was run.
  std::span<const RankedBlocks> ranked() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace karez
