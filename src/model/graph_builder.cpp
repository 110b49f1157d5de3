#include "model/graph_builder.h"

#include "base/check.h"

namespace karez {

GraphBuilder::GraphBuilder(ggml_context* context, ggml_cgraph* graph, const ModelConfig& config,
                           const ModelWeights& weights, AttentionNodes& attention,
                           const GraphInputs& inputs, bool has_outputs, bool ranks_ahead)
    : context_(context),
      graph_(graph),
      config_(config),
      weights_(weights),
      attention_(attention),
      inputs_(inputs),
      has_outputs_(has_outputs),
      ranks_ahead_(ranks_ahead) {}

const LayerWeights& GraphBuilder::weights(int layer) const {
  return weights_.layers[static_cast<std::size_t>(layer)];
}

ggml_tensor* GraphBuilder::rms_norm(ggml_tensor* x, ggml_tensor* weight) {
  // ggml computes this pair of nodes as one.
  return ggml_mul(context_, ggml_rms_norm(context_, x, config_.rms_norm_eps), weight);
}

ggml_tensor* GraphBuilder::add(ggml_tensor* a, ggml_tensor* b) { return ggml_add(context_, a, b); }

ggml_tensor* GraphBuilder::select_rows(ggml_tensor* x) {
  return inputs_.output_rows == nullptr ? x : ggml_get_rows(context_, x, inputs_.output_rows);
}

ggml_tensor* GraphBuilder::residual(int layer, ggml_tensor* x) {
  return is_last(layer) ? select_rows(x) : x;
}

// Adds elements [first, first + rows of x) of the bias, if there is one.
ggml_tensor* GraphBuilder::add_bias(ggml_tensor* x, ggml_tensor* bias, std::int64_t first) {
  if (bias == nullptr) {
    return x;
  }
  ggml_tensor* part =
      ggml_view_1d(context_, bias, x->ne[0], static_cast<std::size_t>(first) * sizeof(float));
  return ggml_add(context_, x, part);
}

// Heads [first_head, first_head + num_heads) of a projection [heads x head_dim, n], as a view
// [head_dim, num_heads, n].
ggml_tensor* GraphBuilder::heads(ggml_tensor* x, std::int64_t first_head, std::int64_t num_heads) {
  const std::size_t head_bytes = static_cast<std::size_t>(config_.head_dim) * sizeof(float);
  return ggml_view_3d(context_, x, config_.head_dim, num_heads, x->ne[1], head_bytes, x->nb[1],
                      static_cast<std::size_t>(first_head) * head_bytes);
}

ggml_tensor* GraphBuilder::rope(ggml_tensor* x, int layer) {
  const RopeConfig& r = config_.rope;
  const bool windowed = config_.layer_windows[static_cast<std::size_t>(layer)] > 0;
  return ggml_rope_ext_inplace(context_, x, inputs_.positions, weights_.rope_factors, r.dimensions,
                               r.neox ? GGML_ROPE_TYPE_NEOX : GGML_ROPE_TYPE_NORMAL,
                               r.original_context, windowed ? r.freq_base_window : r.freq_base,
                               windowed ? r.freq_scale_window : r.freq_scale, r.ext_factor,
                               r.attn_factor, r.beta_fast, r.beta_slow);
}

ggml_tensor* GraphBuilder::normed_and_rotated(ggml_tensor* x, int layer, std::int64_t first_head) {
  ggml_tensor* norms = weights(layer).qk_norm;  // a row for each query head, then each key head
  if (norms != nullptr) {
    ggml_tensor* rows = ggml_view_2d(context_, norms, norms->ne[0], x->ne[1], norms->nb[1],
                                     static_cast<std::size_t>(first_head) * norms->nb[1]);
    x = rms_norm(x, rows);
  }
  return rope(x, layer);
}

GraphBuilder::Projections GraphBuilder::project(int layer, ggml_tensor* x) {
  const LayerWeights& w = weights(layer);
  const std::int64_t num_heads = config_.num_heads;
  const std::int64_t num_kv_heads = config_.num_kv_heads;
  const std::int64_t value_offset = (num_heads + num_kv_heads) * config_.head_dim;
  const auto split_qk = [&](ggml_tensor* qk, std::int64_t rows) {
    // Query and key heads together: one norm and one rotation for both.
    ggml_tensor* both = normed_and_rotated(heads(qk, 0, num_heads + num_kv_heads), layer, 0);
    const auto part = [&](std::int64_t first, std::int64_t count) {
      return ggml_view_3d(context_, both, config_.head_dim, count, rows, both->nb[1], both->nb[2],
                          static_cast<std::size_t>(first) * both->nb[1]);
    };
    return std::pair(part(0, num_heads), part(num_heads, num_kv_heads));
  };
  const std::int64_t rows = x->ne[1];
  if (w.qkv != nullptr) {
    ggml_tensor* qkv = add_bias(ggml_mul_mat(context_, w.qkv, x), w.qkv_bias, 0);
    ggml_tensor* v = heads(qkv, num_heads + num_kv_heads, num_kv_heads);
    const auto [q, k] = split_qk(qkv, rows);
    return {q, k, v};
  }
  ggml_tensor* v = add_bias(ggml_mul_mat(context_, w.v, x), w.qkv_bias, value_offset);
  v = heads(v, 0, num_kv_heads);
  if (w.qk != nullptr) {
    const auto [q, k] = split_qk(add_bias(ggml_mul_mat(context_, w.qk, x), w.qkv_bias, 0), rows);
    return {q, k, v};
  }
  ggml_tensor* q = add_bias(ggml_mul_mat(context_, w.q, x), w.qkv_bias, 0);
  ggml_tensor* k =
      add_bias(ggml_mul_mat(context_, w.k, x), w.qkv_bias, num_heads * config_.head_dim);
  return {normed_and_rotated(heads(q, 0, num_heads), layer, 0),
          normed_and_rotated(heads(k, 0, num_kv_heads), layer, num_heads), v};
}

// Where queries and keys have one matrix the keys are computed too: its rows may be interleaved.
ggml_tensor* GraphBuilder::project_queries(int layer, ggml_tensor* x) {
  const LayerWeights& w = weights(layer);
  ggml_tensor* matrix = w.qkv != nullptr ? w.qkv : w.qk != nullptr ? w.qk : w.q;
  ggml_tensor* projected = add_bias(ggml_mul_mat(context_, matrix, x), w.qkv_bias, 0);
  return normed_and_rotated(heads(projected, 0, config_.num_heads), layer, 0);
}

void GraphBuilder::foresee(int layer, ggml_tensor* hidden) {
  foreseen_queries_ = nullptr;
  if (!ranks_ahead_ || is_last(layer) || !attention_.can_rank(layer + 1)) {
    return;
  }
  foreseen_queries_ =
      project_queries(layer + 1, rms_norm(hidden, weights(layer + 1).attention_norm));
}

ggml_tensor* GraphBuilder::attention(int layer, ggml_tensor* x) {
  const Projections p = project(layer, x);
  const bool ends_here = is_last(layer) && !has_outputs_;
  if (!ends_here) {
    ggml_build_forward_expand(graph_, p.q);  // before store(), so as not to count as attention
  }
  if (foreseen_queries_ != nullptr) {
    ggml_build_forward_expand(graph_, foreseen_queries_);  // likewise
  }
  ggml_tensor* stored = attention_.store(context_, layer, p.k, p.v);
  ggml_build_forward_expand(graph_, stored);
  if (ends_here) {
    return nullptr;
  }
  ggml_tensor* ready =
      attention_.has_select() ? attention_.select(context_, layer, p.q, stored) : stored;
  if (foreseen_queries_ != nullptr) {
    // Nothing depends on it: its place is between the two, when what this layer reads is there.
    ggml_build_forward_expand(graph_, ready);
    ggml_build_forward_expand(graph_,
                              attention_.rank(context_, layer + 1, foreseen_queries_, ready));
  }
  ggml_tensor* attended = attention_.attend(context_, layer, p.q, ready);
  const LayerWeights& w = weights(layer);
  return add_bias(ggml_mul_mat(context_, w.attention_output, residual(layer, attended)),
                  w.attention_output_bias, 0);
}

ggml_tensor* GraphBuilder::gated_ffn(int layer, ggml_tensor* x, Activation activation) {
  const LayerWeights& w = weights(layer);
  ggml_tensor* gated = nullptr;
  if (w.gate_up != nullptr) {
    ggml_tensor* both = add_bias(ggml_mul_mat(context_, w.gate_up, x), w.gate_up_bias, 0);
    gated =
        activation == Activation::kSilu ? ggml_swiglu(context_, both) : ggml_geglu(context_, both);
  } else {
    ggml_tensor* gate = add_bias(ggml_mul_mat(context_, w.gate, x), w.gate_up_bias, 0);
    ggml_tensor* up =
        add_bias(ggml_mul_mat(context_, w.up, x), w.gate_up_bias, config_.intermediate_size);
    gated = activation == Activation::kSilu ? ggml_swiglu_split(context_, gate, up)
                                            : ggml_geglu_split(context_, gate, up);
  }
  return add_bias(ggml_mul_mat(context_, w.down, gated), w.down_bias, 0);
}

ggml_tensor* GraphBuilder::embed() {
  ggml_tensor* x = ggml_get_rows(context_, weights_.token_embedding, inputs_.tokens);
  return config_.embedding_scale == 1.0F ? x : ggml_scale(context_, x, config_.embedding_scale);
}

ggml_tensor* GraphBuilder::logits(ggml_tensor* hidden) {
  ggml_tensor* x = ggml_mul_mat(context_, weights_.output, rms_norm(hidden, weights_.output_norm));
  x = add_bias(x, weights_.output_bias, 0);
  if (config_.final_logit_softcap > 0) {
    x = ggml_scale(context_, x, 1.0F / config_.final_logit_softcap);
    x = ggml_scale(context_, ggml_tanh(context_, x), config_.final_logit_softcap);
  }
  return x;
}

ggml_tensor* build_pre_norm_layer(GraphBuilder& graph, int layer, ggml_tensor* hidden,
                                  Activation activation) {
  const LayerWeights& w = graph.weights(layer);
  graph.foresee(layer, hidden);
  ggml_tensor* attended = graph.attention(layer, graph.rms_norm(hidden, w.attention_norm));
  if (attended == nullptr) {
    return nullptr;
  }
  hidden = graph.add(attended, graph.residual(layer, hidden));
  return graph.add(graph.gated_ffn(layer, graph.rms_norm(hidden, w.ffn_norm), activation), hidden);
}

}  // namespace karez
