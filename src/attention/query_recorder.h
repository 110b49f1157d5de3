// Puts a step's queries into the rings of the sequences that keep them (SequenceRows::queries):
// the part of PagedAttention::attend() that reads no keys.
//
// Layers with a window record nothing, and neither do rows whose results are guesses (hint rows).
// Thread: plan() by one thread while no other call runs; run() by all threads at once: each
// (row, KV head) is one thread's. Owns: the list of rows. Borrows the rings.
#pragma once

#include <span>
#include <vector>

#include "attention/query_ring.h"
#include "attention/rows_view.h"
#include "attention/sequence_rows.h"

namespace karez {

class QueryRecorder {
 public:
  // group: query heads per KV head.
  QueryRecorder(int num_kv_heads, int group, int head_dim)
      : num_kv_heads_(num_kv_heads), group_(group), head_dim_(head_dim) {}

  void plan(std::span<const SequenceRows> sequences);
  // One thread's part of a layer without a window. queries: f32 [num_rows][num_heads, head_dim].
  void run(int layer, RowsView queries, int thread, int num_threads) const;

 private:
  struct Row {
    QueryRing* ring;
    int position;
    int row;  // in the batch
  };

  int num_kv_heads_;
  int group_;
  int head_dim_;
  std::vector<Row> rows_;
};

}  // namespace karez
