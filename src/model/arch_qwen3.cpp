#include "model/architecture.h"
#include "model/model_config.h"

namespace karez {
namespace {

Expected<void> configure(const GgufFile&, ModelConfig& config) {
  config.rope.neox = true;
  return {};
}

}  // namespace

extern const Architecture arch_qwen3{.name = "qwen3", .configure = configure};

}  // namespace karez
