#include "model/architecture.h"

namespace karez {

const Architecture* find_architecture(std::string_view name) {
  for (const Architecture* architecture : architectures()) {
    if (architecture->name == name) {
      return architecture;
    }
  }
  return nullptr;
}

}  // namespace karez
