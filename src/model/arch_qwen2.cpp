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
  return load_transformer(store, config, weights);
}

ggml_tensor* build_layer(GraphBuilder& graph, int layer, ggml_tensor* hidden) {
  return build_pre_norm_layer(graph, layer, hidden, Activation::kSilu);
}

}  // namespace

extern const Architecture arch_qwen2{
    .name = "qwen2", .configure = configure, .load = load, .build_layer = build_layer};

}  // namespace karez
