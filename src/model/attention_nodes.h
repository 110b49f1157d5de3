// PagedAttention as nodes of a ggml graph: `store` writes a layer's new keys and values into their
// blocks, `select` (if sparse attention is on) picks what each row reads, `attend` reads it. The
// nodes run on ggml's own threads.
//
// The nodes point into this object: it must outlive the graphs, and begin_step() must have been
// called for the batch before a graph runs.
// Thread: begin_step() and end_step() by the caller of the graph; the node functions by ggml.
// Owns: timing slots. Borrows: the PagedAttention.
#pragma once

#include <ggml.h>

#include <chrono>
#include <span>
#include <vector>

#include "attention/paged_attention.h"
#include "base/trace.h"

namespace karez {

class KVCacheManager;

// Seconds from the first thread's entry to the last thread's exit, summed over layers.
struct AttentionTimes {
  double total = 0;   // store() to attend()
  double select = 0;  // of that, select(), with what its listener waits for
  double attend = 0;  // of that, attend()
  double rank = 0;    // of that, rank(): what later layers may read
};

class AttentionNodes {
 public:
  // has_select: graphs get select nodes.
  AttentionNodes(PagedAttention& attention, int num_layers, int max_threads, bool has_select);
  AttentionNodes(const AttentionNodes&) = delete;
  AttentionNodes& operator=(const AttentionNodes&) = delete;

  // queries [head_dim, heads, n], keys and values [head_dim, kv_heads, n]: f32, dense in their
  // first two dimensions.
  // The returned node has no data of its own; select() or attend() depends on it.
  ggml_tensor* store(ggml_context* context, int layer, ggml_tensor* keys, ggml_tensor* values);
  // As store(). Only with has_select.
  ggml_tensor* select(ggml_context* context, int layer, ggml_tensor* queries, ggml_tensor* stored);
  bool has_select() const { return has_select_; }
  // queries: estimated for the layer, which comes later. As select(); nothing depends on it, it
  // runs where it is put into the graph.
  ggml_tensor* rank(ggml_context* context, int layer, ggml_tensor* queries, ggml_tensor* after);
  // Whether the step at hand, or a step of the plan, can use it.
  bool can_rank(int layer) const { return attention_.can_rank(layer); }
  // [heads x head_dim, n], f32.
  ggml_tensor* attend(ggml_context* context, int layer, ggml_tensor* queries, ggml_tensor* ready);

  // index: of kv's blocks; null: none, which is right if no layer selects.
  void begin_step(std::span<const SequenceRows> sequences, const KVCacheManager& kv,
                  const KeyIndex* index);
  // Of the layers that ran since begin_step().
  AttentionTimes end_step();
  // After end_step(), of a graph that ran from begin to end: its layers, and what is between them.
  void trace_step(TraceWriter& trace, std::chrono::steady_clock::time_point begin,
                  std::chrono::steady_clock::time_point end) const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Layer {
    AttentionNodes* owner = nullptr;
    int index = 0;
    // Written by thread 0, which enters a node when all threads have left the one before.
    Clock::time_point begin;
    Clock::time_point select_begin;
    Clock::time_point rank_begin;  // of the layer after it
    Clock::time_point attend_begin;
    bool ran = false;
    bool attended = false;
    bool ranked = false;
  };
  struct alignas(64) ExitTimes {  // of one thread, so that threads do not share cache lines
    std::vector<Clock::time_point> by_layer;
  };

  Clock::time_point end_of(const Layer& layer) const;
  static void run_store(ggml_tensor* node, int thread, int num_threads, void* layer);
  static void run_select(ggml_tensor* node, int thread, int num_threads, void* layer);
  static void run_rank(ggml_tensor* node, int thread, int num_threads, void* layer);
  static void run_attend(ggml_tensor* node, int thread, int num_threads, void* layer);

  PagedAttention& attention_;
  bool has_select_;
  std::vector<Layer> layers_;
  std::vector<ExitTimes> exits_;  // [max_threads]
  std::vector<KVLayerView> views_;
  std::vector<KeyIndexView> index_views_;
};

}  // namespace karez
