// The tensors of a decoder-only transformer, as all supported architectures share them.
//
// An architecture fills in what it has; nullptr means "this model has none". Shapes are ggml's,
// innermost dimension first.
// Thread: immutable after loading. Owns: nothing; the WeightStore owns the tensors.
#pragma once

#include <ggml.h>

#include <vector>

#include "base/status.h"
#include "model/model_config.h"

namespace karez {

class WeightStore;

struct LayerWeights {
  ggml_tensor* attention_norm = nullptr;  // f32 [hidden]

  // Query, key and value projections: glued as far as types allow. Either qkv is set, or qk and v,
  // or q, k and v.
  ggml_tensor* qkv = nullptr;  // [hidden, (heads + 2 kv_heads) x head_dim]
  ggml_tensor* qk = nullptr;
  ggml_tensor* q = nullptr;
  ggml_tensor* k = nullptr;
  ggml_tensor* v = nullptr;
  ggml_tensor* qkv_bias = nullptr;  // f32 [(heads + 2 kv_heads) x head_dim]
  ggml_tensor* qk_norm = nullptr;   // f32 [head_dim, heads + kv_heads]

  ggml_tensor* attention_output = nullptr;  // [heads x head_dim, hidden]
  ggml_tensor* attention_output_bias = nullptr;
  ggml_tensor* attention_post_norm = nullptr;

  ggml_tensor* ffn_norm = nullptr;
  ggml_tensor* gate_up = nullptr;  // glued [hidden, 2 x intermediate], or gate and up
  ggml_tensor* gate = nullptr;
  ggml_tensor* up = nullptr;
  ggml_tensor* gate_up_bias = nullptr;  // f32 [2 x intermediate]
  ggml_tensor* down = nullptr;
  ggml_tensor* down_bias = nullptr;
  ggml_tensor* ffn_post_norm = nullptr;
};

struct ModelWeights {
  ggml_tensor* token_embedding = nullptr;  // [hidden, vocab]
  std::vector<LayerWeights> layers;
  ggml_tensor* output_norm = nullptr;
  ggml_tensor* output = nullptr;  // [hidden, vocab]; the embedding again if the model ties them
  ggml_tensor* output_bias = nullptr;
  ggml_tensor* rope_factors = nullptr;  // f32 [rope dimensions / 2], Llama 3
};

// The parts that every supported architecture has: embedding, projections, gated feed-forward,
// norms before both, final norm and output; biases wherever the file has them.
// Fails: kCorruption naming the tensor.
Expected<void> load_transformer(WeightStore& store, const ModelConfig& config,
                                ModelWeights& weights);
// RMS norms of each query and key head (Qwen 3, Gemma 3).
Expected<void> load_qk_norms(WeightStore& store, const ModelConfig& config, ModelWeights& weights);
// Norms after attention and after the feed-forward part (Gemma 3).
Expected<void> load_post_norms(WeightStore& store, const ModelConfig& config,
                               ModelWeights& weights);

}  // namespace karez
