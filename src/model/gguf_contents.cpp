#include "model/gguf_contents.h"

#include <fmt/format.h>

#include <algorithm>

namespace karez {
namespace {

constexpr std::size_t kMaxPrintedBytes = 80;

}  // namespace

const GgufEntry* GgufContents::find_entry(std::string_view key) const {
  const auto by_key = [&](std::uint32_t i) { return entries[i].key; };
  const auto found = std::ranges::lower_bound(entries_by_key, key, {}, by_key);
  return found != entries_by_key.end() && by_key(*found) == key ? &entries[*found] : nullptr;
}

const GgufTensor* GgufContents::find_tensor(std::string_view name) const {
  const auto by_name = [&](std::uint32_t i) { return tensors[i].name; };
  const auto found = std::ranges::lower_bound(tensors_by_name, name, {}, by_name);
  return found != tensors_by_name.end() && by_name(*found) == name ? &tensors[*found] : nullptr;
}

std::size_t gguf_scalar_bytes(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool:
      return 1;
    case GgufType::kU16:
    case GgufType::kI16:
      return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32:
      return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      return 0;
  }
  return 0;
}

std::string_view to_string(GgufType type) {
  switch (type) {
    case GgufType::kU8:
      return "u8";
    case GgufType::kI8:
      return "i8";
    case GgufType::kU16:
      return "u16";
    case GgufType::kI16:
      return "i16";
    case GgufType::kU32:
      return "u32";
    case GgufType::kI32:
      return "i32";
    case GgufType::kF32:
      return "f32";
    case GgufType::kBool:
      return "bool";
    case GgufType::kString:
      return "string";
    case GgufType::kArray:
      return "array";
    case GgufType::kU64:
      return "u64";
    case GgufType::kI64:
      return "i64";
    case GgufType::kF64:
      return "f64";
  }
  return "unknown";
}

std::string printable(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, kMaxPrintedBytes)) {
    if (c >= ' ' && c <= '~' && c != '"') {
      out.push_back(c);
    } else {
      out += fmt::format("\\x{:02X}", static_cast<unsigned char>(c));
    }
  }
  if (text.size() > kMaxPrintedBytes) {
    out += "...";
  }
  return out;
}

}  // namespace karez
