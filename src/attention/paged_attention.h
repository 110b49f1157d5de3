// softmax(q k^T) v over block tables, for any mix of sequences and row counts.
//
// A step calls plan() once, then for each layer store(), select() (if sparse attention is on) and
// attend(), each from all compute threads with their own thread index. Each of them may start when
// the one before has returned on all threads.
//
// A row's result depends on its own query and its sequence's keys and values alone: the same bits
// whatever else is in the batch, however the prompt was chunked, whatever the number of threads.
// That holds for sparse rows too: which rows are sparse is a property of the request
// (SequenceRows::first_sparse_position), and each selects with its own query. The one exception is
// a list that a SelectionListener has shortened. A row whose context is within the budget takes the
// dense path. To that end the keys are cut at fixed positions into
// chunks of kChunkTokens; each chunk gives a partial (maximum, sum of exponentials, weighted
// values), and partials are merged in ascending order (online softmax, "Online normalizer
// calculation for softmax", arXiv 1805.02867; splitting the keys of one row over threads is
// Flash-Decoding).
//
// Does not know models, graphs or requests.
// Thread: plan() by one thread while no other call runs; store(), select() and attend() by
// num_threads threads at once. The class takes no locks; work is handed out by atomic counters.
// Owns: scratch of a size bounded at create() and by the number of work items of the plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "attention/key_index.h"
#include "attention/recall.h"
#include "attention/row_selector.h"
#include "attention/rows_view.h"
#include "attention/sequence_rows.h"
#include "attention/sparse_rows.h"
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
  SparseOptions sparse = {};

  // Fails: kInvalidArgument naming the option.
  Expected<void> validate(const KVCacheSpec& spec) const;
};

class PagedAttention {
 public:
  // Fails: as the two validate().
  static Expected<std::unique_ptr<PagedAttention>> create(const KVCacheSpec& spec,
                                                          const AttentionOptions& options);
  virtual ~PagedAttention() = default;

  // Cuts the step into work items, and says which rows' queries attend() keeps for whoever asks for
  // them (SequenceRows::queries; layers without a window, hint rows never). Tables must stay valid
  // until the last layer is done.
  virtual void plan(std::span<const SequenceRows> sequences) = 0;

  // Writes the rows' keys and values, f32 [num_kv_heads, head_dim] each, into their blocks, and the
  // index of the keys into their records.
  // Requires: KVCacheManager::extend() has made room for them; views are of that layer. An index
  // that is none is left out; a layer that selects needs one, of options.sparse.block_index.
  virtual void store(int layer, const KVLayerView& layer_view, const KeyIndexView& index,
                     RowsView keys, RowsView values, int thread, int num_threads) = 0;

  // Picks the blocks of each sparse row, then tells the listener, which may take its time and may
  // shorten lists: select() returns on that thread when the listener has. Not needed unless
  // options.sparse.is_on().
  virtual void select(int layer, const KeyIndexView& index, RowsView queries, int thread,
                      int num_threads) = 0;
  // Whether rank() has anything to do in this step: some rows select in the layer, and the listener
  // wants to know of it early (options.sparse.rank_ahead).
  virtual bool can_rank(int layer) const = 0;
  // Guesses what select() of a later layer will pick that is not in the fast tier, and tells the
  // listener. queries: estimated for that layer, else as select(). After select() of a layer before
  // it; slots do not change meanwhile.
  virtual void rank(int layer, const KVLayerView& layer_view, const KeyIndexView& index,
                    RowsView queries, int thread, int num_threads) = 0;
  // Sparse rows of the plan.
  virtual int num_sparse_rows() const = 0;
  // Borrowed; null: none.
  virtual void set_selection_listener(SelectionListener* listener) = 0;

  // out, f32 [num_rows][num_heads * head_dim], dense. queries: f32 [num_heads, head_dim] each row.
  virtual void attend(int layer, const KVLayerView& layer_view, RowsView queries, float* out,
                      int thread, int num_threads) = 0;

  // Bytes of keys and values that attend() of one layer reads at least once under this plan,
  // without what the listener has dropped.
  virtual std::int64_t planned_read_bytes(int layer) const = 0;
  // Archived pages among these, one for each row that selects, else for each sequence and KV head.
  virtual std::int64_t planned_archived_pages(int layer) const = 0;
  // Bytes of the key index that select() of one layer reads.
  virtual std::int64_t planned_index_bytes(int layer) const = 0;

  // With options.sparse.recall_stride: what the lists of the measured rows, for every layer and
  // query head, since the last call were worth. Unordered. Not while a step runs.
  virtual std::vector<RecallSample> take_recall() = 0;
};

}  // namespace karez
