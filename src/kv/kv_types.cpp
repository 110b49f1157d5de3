#include "kv/kv_types.h"

#include <fmt/format.h>

#include <array>

namespace karez {

namespace {
constexpr std::array kTypes = {KvType::kF32, KvType::kBf16, KvType::kQ8_0};
}

std::string_view to_string(KvType type) {
  switch (type) {
    case KvType::kF32:
      return "f32";
    case KvType::kBf16:
      return "bf16";
    case KvType::kQ8_0:
      return "q8_0";
  }
  return "unknown";
}

Expected<KvType> parse_kv_type(std::string_view name) {
  std::string names;
  for (const KvType type : kTypes) {
    if (name == to_string(type)) {
      return type;
    }
    names += names.empty() ? "" : ", ";
    names += to_string(type);
  }
  return fail(StatusCode::kInvalidArgument,
              fmt::format("the KV type is '{}', allowed are {}", name, names));
}

}  // namespace karez
