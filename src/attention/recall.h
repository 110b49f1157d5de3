// How much of a row's true attention lies in the blocks that it selected.
//
// Exact and slow: every key of the context is read, in f64. For evaluation only.
// Thread: pure functions over memory that no one writes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/sequence_rows.h"
#include "kv/block_table.h"
#include "kv/kv_types.h"

namespace karez {

// Softmax mass of the selected blocks, in [0, 1].
struct RecallSample {
  int layer;
  int sequence;  // index in the step's sequences
  int position;  // of the row
  int head;      // query head
  float mass;
};

struct RecallSummary {
  std::int64_t count = 0;
  double mean = 0;
  double p1 = 0;  // 1 % of the samples are less
  double worst = 0;
};
// For each layer below num_layers; layers without samples have count 0.
std::vector<RecallSummary> summarise_recall(std::span<const RecallSample> samples, int num_layers);

struct RecallShape {
  KvType type;
  int head_dim;
  int group;  // query heads of the KV head
  float scale;
  float softcap;  // 0: off
};

// One mass for each query head. query: f32 [group][head_dim] of the row at `place`; selected:
// ascending entries of the table, of which some may be archived pages.
std::vector<float> recalled_mass(const RecallShape& shape, const KVLayerView& view,
                                 BlockTableView table, int kv_head, int place, const float* query,
                                 std::span<const std::int32_t> selected,
                                 const ArchivedEntries& archived = {});

}  // namespace karez
