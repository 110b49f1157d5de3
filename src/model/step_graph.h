// A ggml graph for batches of one shape: so many rows, so many of them with logits.
//
// Built once, computed for every batch of that shape. Its tensors live in the compute buffer of the
// allocator that it was given: graphs share that buffer and run one at a time.
// Thread: one. Owns: the graph's tensor descriptions, not the compute buffer.
#pragma once

#include <ggml-cpp.h>

#include <cstdint>
#include <span>

#include "base/status.h"
#include "model/architecture.h"
#include "model/graph_builder.h"

namespace karez {

class StepGraph {
 public:
  struct Shape {
    int num_rows = 0;
    int num_outputs = 0;
    bool ranks_ahead = false;  // with the nodes of AttentionNodes::rank()
    friend bool operator==(Shape, Shape) = default;
  };

  // Requires: num_outputs <= num_rows. An output for every row needs no row selection.
  StepGraph(Shape shape, const Architecture& architecture, const ModelConfig& config,
            const ModelWeights& weights, AttentionNodes& attention);

  Shape shape() const { return shape_; }

  // Fails: kResourceExhausted without memory for the compute buffer.
  Expected<void> allocate(ggml_gallocr_t allocator);
  // Requires: allocate() and AttentionNodes::begin_step(). output_rows: [num_outputs].
  // Fails: kInternal if ggml fails.
  Expected<void> compute(ggml_backend_t backend, std::span<const std::int32_t> tokens,
                         std::span<const std::int32_t> positions,
                         std::span<const std::int32_t> output_rows);
  // f32 [num_outputs][vocab], until the next graph runs.
  std::span<const float> logits() const;

 private:
  Shape shape_;
  ggml_context_ptr context_;
  ggml_cgraph* graph_ = nullptr;
  GraphInputs inputs_;
  ggml_tensor* logits_ = nullptr;
};

}  // namespace karez
