#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "model/architecture.h"
#include "model/gguf_file.h"
#include "model/graph_builder.h"
#include "model/metadata_reader.h"
#include "model/model_config.h"
#include "model/model_weights.h"

namespace karez {
namespace {

// The 27B model divides by the width of a head of its embedding instead of its head dimension.
constexpr int kLayersOf27B = 62;

// Five layers with a window, then one without, unless the file says otherwise: by another period,
// or by one flag for each layer.
void read_windows(const GgufFile& file, MetadataReader& keys, ModelConfig& config) {
  constexpr std::string_view kPattern = "attention.sliding_window_pattern";
  constexpr std::string_view kPatternKey = "gemma3.attention.sliding_window_pattern";
  const int window =
      keys.integer("attention.sliding_window", 0, std::numeric_limits<int>::max(), 0);
  if (file.has(kPatternKey) && file.type(kPatternKey) == GgufType::kArray) {
    const auto flags = file.get_int_array(kPatternKey, config.layer_windows.size());
    if (!flags || flags->size() != config.layer_windows.size()) {
      keys.refuse(StatusCode::kCorruption, kPattern,
                  fmt::format("must have one integer or bool for each of the {} layers",
                              config.num_layers));
      return;
    }
    for (std::size_t layer = 0; layer < flags->size(); ++layer) {
      config.layer_windows[layer] = (*flags)[layer] != 0 ? window : 0;
    }
    return;
  }
  const int period = keys.integer(kPattern, 0, std::numeric_limits<int>::max(), 6);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const bool full = period != 0 && layer % period == period - 1;
    config.layer_windows[static_cast<std::size_t>(layer)] = full ? 0 : window;
  }
}

Expected<void> configure(const GgufFile& file, ModelConfig& config) {
  MetadataReader keys(file, config.architecture);
  read_windows(file, keys, config);
  config.rope.neox = true;
  config.rope.freq_base_window = keys.positive_number("rope.freq_base_swa", 1e12F, 10000.0F);
  for (const std::string_view key : {"attention.key_length_swa", "attention.value_length_swa"}) {
    if (keys.integer(key, 1, std::numeric_limits<int>::max(), config.head_dim) != config.head_dim) {
      keys.refuse(StatusCode::kUnimplemented, key,
                  fmt::format("differs from attention.key_length, which is {}", config.head_dim));
    }
  }
  if (keys.integer("rope.dimension_count_swa", 2, std::numeric_limits<int>::max(),
                   config.rope.dimensions) != config.rope.dimensions) {
    keys.refuse(
        StatusCode::kUnimplemented, "rope.dimension_count_swa",
        fmt::format("differs from rope.dimension_count, which is {}", config.rope.dimensions));
  }
  config.embedding_scale = std::sqrt(static_cast<float>(config.hidden_size));
  config.final_logit_softcap = keys.number("final_logit_softcapping", 0, 1e6F, 0.0F);
  if (config.num_layers == kLayersOf27B) {
    config.attention_scale =
        1.0F / std::sqrt(static_cast<float>(config.hidden_size / config.num_heads));
  }
  return keys.status();
}

Expected<void> load(WeightStore& store, const ModelConfig& config, ModelWeights& weights) {
  if (auto loaded = load_transformer(store, config, weights); !loaded) {
    return loaded;
  }
  if (auto loaded = load_qk_norms(store, config, weights); !loaded) {
    return loaded;
  }
  return load_post_norms(store, config, weights);
}

// Norms before and after both halves of the layer.
ggml_tensor* build_layer(GraphBuilder& graph, int layer, ggml_tensor* hidden) {
  const LayerWeights& w = graph.weights(layer);
  graph.foresee(layer, hidden);
  ggml_tensor* attended = graph.attention(layer, graph.rms_norm(hidden, w.attention_norm));
  if (attended == nullptr) {
    return nullptr;
  }
  hidden =
      graph.add(graph.rms_norm(attended, w.attention_post_norm), graph.residual(layer, hidden));
  ggml_tensor* x = graph.gated_ffn(layer, graph.rms_norm(hidden, w.ffn_norm), Activation::kGelu);
  return graph.add(graph.rms_norm(x, w.ffn_post_norm), hidden);
}

}  // namespace

extern const Architecture arch_gemma3{
    .name = "gemma3", .configure = configure, .load = load, .build_layer = build_layer};

}  // namespace karez
