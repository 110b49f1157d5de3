// Writes a step's keys and values into their blocks, and the index of the keys into their records:
// the work of PagedAttention::store().
//
// Rows that follow each other in one block are written in one go; threads share out such runs and
// KV heads.
// Thread: plan() by one thread while no other call runs; run() by all threads at once.
// Owns: the list of runs.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "attention/block_store.h"
#include "attention/key_index.h"
#include "attention/rows_view.h"
#include "attention/sequence_rows.h"
#include "kv/kv_cache_manager.h"
#include "kv/kv_cache_spec.h"

namespace karez {

class RowWriter {
 public:
  explicit RowWriter(const KVCacheSpec& spec)
      : head_dim_(spec.head_dim),
        num_kv_heads_(spec.num_kv_heads),
        type_(spec.type),
        groups_(spec.layer_groups()) {}

  // Must stay valid until the last run().
  void plan(std::span<const SequenceRows> sequences);
  // One thread's part of a layer. table_group: of the layer, index into SequenceRows::tables.
  // keys, values: f32 [num_rows][num_kv_heads, head_dim]. index: none: nothing is indexed.
  void run(std::size_t table_group, const KVLayerView& layer_view, const KeyIndexView& index,
           RowsView keys, RowsView values, int thread, int num_threads) const;

 private:
  // Consecutive rows that lie in one block.
  struct Run {
    int sequence;
    int block;  // of their positions, which is not everywhere the table's entry
    int first_token;
    int num_tokens;
    int row;  // in the batch
  };

  void write_index(const KeyIndexView& index, const Run& run, int head, BlockId block,
                   const std::byte* slot) const;

  int head_dim_;
  int num_kv_heads_;
  KvType type_;
  std::vector<LayerGroup> groups_;
  std::span<const SequenceRows> sequences_;
  std::vector<Run> runs_;
};

}  // namespace karez
