// The model architectures that Karez runs, one file each: arch_<name>.cpp.
//
// Such a file defines `extern const Architecture arch_<name>`; CMake collects the files into the
// list below, so adding an architecture touches nothing else.
// Thread: constants; free for all.
#pragma once

#include <span>
#include <string_view>

#include "base/status.h"

struct ggml_tensor;

namespace karez {

class GgufFile;
class GraphBuilder;
class WeightStore;
struct ModelConfig;
struct ModelWeights;

struct Architecture {
  std::string_view name;  // general.architecture

  // Adds to `config`, in which the metadata common to all architectures is already filled in, what
  // is special here: rope pairing, windows, scales, soft caps. Reads keys through MetadataReader.
  // Fails: as read_model_config().
  Expected<void> (*configure)(const GgufFile& file, ModelConfig& config);
  // Asks `store` for the tensors of the model.
  // Fails: kCorruption naming a tensor that is missing or has another shape.
  Expected<void> (*load)(WeightStore& store, const ModelConfig& config, ModelWeights& weights);
  // Adds one layer to a step's graph: hidden states in, hidden states out (model/graph_builder.h).
  // nullptr: this is the last layer and no logits are wanted.
  ggml_tensor* (*build_layer)(GraphBuilder& graph, int layer, ggml_tensor* hidden);
};

// Ascending by name.
std::span<const Architecture* const> architectures();
// nullptr without such an architecture.
const Architecture* find_architecture(std::string_view name);

}  // namespace karez
