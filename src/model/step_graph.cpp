#include "model/step_graph.h"

#include <fmt/format.h>
#include <ggml-alloc.h>
#include <ggml-backend.h>

namespace karez {

namespace {

// More than any supported layer needs.
constexpr std::size_t kMaxNodesPerLayer = 64;
constexpr std::size_t kMaxOtherNodes = 64;

void set(ggml_tensor* tensor, std::span<const std::int32_t> values) {
  if (tensor != nullptr) {
    ggml_backend_tensor_set(tensor, values.data(), 0, values.size_bytes());
  }
}

}  // namespace

StepGraph::StepGraph(Shape shape, const Architecture& architecture, const ModelConfig& config,
                     const ModelWeights& weights, AttentionNodes& attention)
    : shape_(shape) {
  const std::size_t max_nodes =
      kMaxNodesPerLayer * static_cast<std::size_t>(config.num_layers) + kMaxOtherNodes;
  context_.reset(ggml_init({.mem_size = ggml_tensor_overhead() * max_nodes +
                                        ggml_graph_overhead_custom(max_nodes, false),
                            .mem_buffer = nullptr,
                            .no_alloc = true}));
  ggml_context* context = context_.get();
  graph_ = ggml_new_graph_custom(context, max_nodes, false);

  const auto input = [&](int length) {
    ggml_tensor* tensor = ggml_new_tensor_1d(context, GGML_TYPE_I32, length);
    ggml_set_input(tensor);
    return tensor;
  };
  inputs_.tokens = input(shape.num_rows);
  inputs_.positions = input(shape.num_rows);
  if (shape.num_outputs > 0 && shape.num_outputs < shape.num_rows) {
    inputs_.output_rows = input(shape.num_outputs);
  }

  GraphBuilder builder(context, graph_, config, weights, attention, inputs_, shape.num_outputs > 0,
                       shape.ranks_ahead);
  ggml_tensor* hidden = builder.embed();
  for (int layer = 0; layer < config.num_layers; ++layer) {
    hidden = architecture.build_layer(builder, layer, hidden);
  }
  if (hidden != nullptr) {
    logits_ = builder.logits(hidden);
    ggml_set_output(logits_);
    ggml_build_forward_expand(graph_, logits_);
  }
}

Expected<void> StepGraph::allocate(ggml_gallocr_t allocator) {
  if (!ggml_gallocr_alloc_graph(allocator, graph_)) {
    return fail(
        StatusCode::kResourceExhausted,
        fmt::format("no memory for the compute buffer of a step of {} tokens", shape_.num_rows));
  }
  return {};
}

Expected<void> StepGraph::compute(ggml_backend_t backend, std::span<const std::int32_t> tokens,
                                  std::span<const std::int32_t> positions,
                                  std::span<const std::int32_t> output_rows) {
  set(inputs_.tokens, tokens);
  set(inputs_.positions, positions);
  set(inputs_.output_rows, output_rows);
  const ggml_status status = ggml_backend_graph_compute(backend, graph_);
  if (status != GGML_STATUS_SUCCESS) {
    return fail(StatusCode::kInternal, fmt::format("ggml could not compute a step of {} tokens: {}",
                                                   shape_.num_rows, ggml_status_to_string(status)));
  }
  return {};
}

std::span<const float> StepGraph::logits() const {
  if (logits_ == nullptr) {
    return {};
  }
  return {static_cast<const float*>(logits_->data),
          static_cast<std::size_t>(ggml_nelements(logits_))};
}

}  // namespace karez
