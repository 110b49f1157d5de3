// softmax(q k^T) v over block tables, for any mix of sequences and row counts.
//
// A step calls plan() once, then for each layer store() and attend(), each from all compute threads
// with their own thread index. attend() of a layer may start when store() of that layer has
// returned on all threads.
//
// A row's result depends on its own query and its sequence's keys and values alone: the same bits
// whatever else is in the batch, however the prompt was chunked, whatever the number of threads.
// To that end the keys are cut at fixed positions into chunks of kChunkTokens; each chunk gives a
// partial (maximum, sum of exponentials, weighted values), and partials are merged in ascending
// order (online softmax, "Online normalizer calculation for softmax", arXiv 1805.02867; splitting
// the keys of one row over threads is Flash-Decoding).
//
// Does not know models, graphs or requests.
// Thread: plan() by one thread while no other call runs; store() and attend() by num_threads
// threads at once. The class takes no locks; work is handed out by atomic counters.
// Owns: scratch of a size bounded at create() and by the number of work items of the plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "attention/sequence_rows.h"
#include "base/cpu_features.h"
#include "base/status.h"
#include "kv/block_table.h"
#include "kv/kv_cache_spec.h"

namespace karez {

inline constexpr int kChunkTokens = 256;

struct AttentionOptions {
  int num_heads = 0;           // query heads; a multiple of spec.num_kv_heads
  float scale = 1.0F;          // multiplies q k
  float logit_softcap = 0.0F;  // c > 0: scores become c tanh(score / c); 0: off
  int max_threads = 1;
  CpuLevel cpu_level = CpuLevel::kPortable;  // kernels to use; at most detected_cpu_level()
};

// A matrix of rows in the batch: f32 [num_rows][...], row r starts at data + r * row_stride.
struct RowsView {
  const float* data = nullptr;
  std::size_t row_stride = 0;  // in floats
};

class PagedAttention {
 public:
  // Fails: kInvalidArgument naming the option.
  static Expected<std::unique_ptr<PagedAttention>> create(const KVCacheSpec& spec,
                                                          const AttentionOptions& options);
  virtual ~PagedAttention() = default;

  // Cuts the step into work items. Tables must stay valid until the last layer is done.
  virtual void plan(std::span<const SequenceRows> sequences) = 0;

  // Writes the rows' keys and values, f32 [num_kv_heads, head_dim] each, into their blocks.
  // Requires: KVCacheManager::extend() has made room for them; layer_view is of that layer.
  virtual void store(int layer, const KVLayerView& layer_view, RowsView keys, RowsView values,
                     int thread, int num_threads) = 0;

  // out, f32 [num_rows][num_heads * head_dim], dense. queries: f32 [num_heads, head_dim] each row.
  virtual void attend(int layer, const KVLayerView& layer_view, RowsView queries, float* out,
                      int thread, int num_threads) = 0;

  // Bytes of keys and values that attend() of one layer reads at least once under this plan.
  virtual std::int64_t planned_read_bytes(int layer) const = 0;
};

}  // namespace karez
