#include "model/architecture.h"
#include "model/model_config.h"

namespace karez {
namespace {

Expected<void> configure(const GgufFile&, ModelConfig& config) {
  config.rope.neox = false;
  return {};
}

}  // namespace

extern const Architecture arch_llama{.name = "llama", .configure = configure};

}  // namespace karez
