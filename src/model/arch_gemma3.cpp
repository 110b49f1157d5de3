#include "model/architecture.h"
#include "model/graph_builder.h"
#include "model/model_config.h"
#include "model/model_weights.h"

namespace karez {
namespace {

Expected<void> configure(const GgufFile&, ModelConfig& config) {
  config.rope.neox = true;
  return {};
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
