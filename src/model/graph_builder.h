// The building blocks of a step's ggml graph, of which each architecture puts its layers together.
//
// Tensors are [hidden, n] with n the rows of the batch, until output_rows() has been called in the
// last layer; then n is the number of rows whose logits are wanted.
// Thread: one. Owns: nothing; nodes live in the context of the graph.
#pragma once

#include <ggml.h>

#include "model/attention_nodes.h"
#include "model/model_config.h"
#include "model/model_weights.h"

namespace karez {

enum class Activation { kSilu, kGelu };

struct GraphInputs {
  ggml_tensor* tokens = nullptr;       // i32 [n]
  ggml_tensor* positions = nullptr;    // i32 [n]
  ggml_tensor* output_rows = nullptr;  // i32 [outputs]; nullptr: all rows are outputs
};

class GraphBuilder {
 public:
  // ranks_ahead: foresee() has an effect.
  GraphBuilder(ggml_context* context, ggml_cgraph* graph, const ModelConfig& config,
               const ModelWeights& weights, AttentionNodes& attention, const GraphInputs& inputs,
               bool has_outputs, bool ranks_ahead);

  const LayerWeights& weights(int layer) const;

  ggml_tensor* rms_norm(ggml_tensor* x, ggml_tensor* weight);
  ggml_tensor* add(ggml_tensor* a, ggml_tensor* b);
  // hidden: what a layer gets. Estimates the queries of the layer after it, by that layer's own
  // norm and projection (InfiniGen, arXiv 2406.19707), so that what they read can be fetched while
  // attention() of this layer goes on. Before attention() of the same layer.
  void foresee(int layer, ggml_tensor* hidden);
  // Projections, head norms, RoPE, store, attend, output projection. In the last layer the result
  // has the output rows only. nullptr: last layer of a batch without outputs; nothing follows.
  ggml_tensor* attention(int layer, ggml_tensor* x);
  ggml_tensor* gated_ffn(int layer, ggml_tensor* x, Activation activation);
  // x, or in the last layer its output rows: to add to what attention() gave.
  ggml_tensor* residual(int layer, ggml_tensor* x);

  ggml_tensor* embed();
  // f32 [vocab, outputs]
  ggml_tensor* logits(ggml_tensor* hidden);

 private:
  struct Projections {
    ggml_tensor* q;  // [head_dim, heads, n]
    ggml_tensor* k;  // [head_dim, kv_heads, n]
    ggml_tensor* v;
  };

  bool is_last(int layer) const { return layer + 1 == config_.num_layers; }
  ggml_tensor* select_rows(ggml_tensor* x);
  ggml_tensor* add_bias(ggml_tensor* x, ggml_tensor* bias, std::int64_t first);
  ggml_tensor* heads(ggml_tensor* x, std::int64_t first_head, std::int64_t num_heads);
  ggml_tensor* rope(ggml_tensor* x, int layer);
  ggml_tensor* normed_and_rotated(ggml_tensor* x, int layer, std::int64_t first_head);
  Projections project(int layer, ggml_tensor* x);
  ggml_tensor* project_queries(int layer, ggml_tensor* x);

  ggml_context* context_;
  ggml_cgraph* graph_;
  const ModelConfig& config_;
  const ModelWeights& weights_;
  AttentionNodes& attention_;
  GraphInputs inputs_;
  bool has_outputs_;
  bool ranks_ahead_;
  ggml_tensor* foreseen_queries_ = nullptr;  // of the layer after the one at hand
};

// The layer of Llama and its many relatives: norm, attention, add, norm, feed-forward, add.
// nullptr as GraphBuilder::attention().
ggml_tensor* build_pre_norm_layer(GraphBuilder& graph, int layer, ggml_tensor* hidden,
                                  Activation activation);

}  // namespace karez
