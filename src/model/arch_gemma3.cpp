#include "model/architecture.h"
#include "model/model_config.h"

namespace karez {
namespace {

Expected<void> configure(const GgufFile&, ModelConfig& config) {
  config.rope.neox = true;
  return {};
}

}  // namespace

extern const Architecture arch_gemma3{.name = "gemma3", .configure = configure};

}  // namespace karez
