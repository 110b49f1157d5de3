// PagedAttention as nodes of a ggml graph: `store` writes a layer's new keys and values into their
// blocks, `attend` reads them all. The nodes run on ggml's own threads.
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

namespace karez {

class KVCacheManager;

class AttentionNodes {
 public:
  AttentionNodes(PagedAttention& attention, int num_layers, int max_threads);
  AttentionNodes(const AttentionNodes&) = delete;
  AttentionNodes& operator=(const AttentionNodes&) = delete;

  // queries [head_dim, heads, n], keys and values [head_dim, kv_heads, n]: f32, dense in their
  // first two dimensions.
  // The returned node has no data of its own; attend() depends on it.
  ggml_tensor* store(ggml_context* context, int layer, ggml_tensor* keys, ggml_tensor* values);
  // [heads x head_dim, n], f32.
  ggml_tensor* attend(ggml_context* context, int layer, ggml_tensor* queries, ggml_tensor* stored);

  void begin_step(std::span<const SequenceRows> sequences, const KVCacheManager& kv);
  // Seconds from the first thread's entry into store() to the last thread's exit from attend(),
  // summed over the layers that ran since begin_step().
  double end_step();

 private:
  using Clock = std::chrono::steady_clock;
  struct Layer {
    AttentionNodes* owner = nullptr;
    int index = 0;
    Clock::time_point begin;
    bool ran = false;
  };
  struct alignas(64) ExitTimes {  // of one thread, so that threads do not share cache lines
    std::vector<Clock::time_point> by_layer;
  };

  static void run_store(ggml_tensor* node, int thread, int num_threads, void* layer);
  static void run_attend(ggml_tensor* node, int thread, int num_threads, void* layer);

  PagedAttention& attention_;
  std::vector<Layer> layers_;
  std::vector<ExitTimes> exits_;  // [max_threads]
  std::vector<KVLayerView> views_;
};

}  // namespace karez
