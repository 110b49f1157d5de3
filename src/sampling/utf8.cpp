#include "sampling/utf8.h"

#include <utility>

namespace karez {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// What the bytes at the front of a text are.
struct Front {
  enum class Kind { kCharacter, kIncomplete, kInvalid } kind;
  std::size_t length;  // of the character, of the beginning, or of the bytes to replace
};

// The Unicode standard, table 3-7: the second byte's range depends on the first; all later ones
// are 80..BF.
Front front_of(std::string_view text) {
  using Kind = Front::Kind;
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) {
    return {Kind::kCharacter, 1};
  }
  if (first < 0xC2 || first > 0xF4) {
    return {Kind::kInvalid, 1};
  }
  const std::size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
  switch (first) {
    case 0xE0:
      low = 0xA0;
      break;
    case 0xED:
      high = 0x9F;
      break;
    case 0xF0:
      low = 0x90;
      break;
    case 0xF4:
      high = 0x8F;
      break;
    default:
      break;
  }
  for (std::size_t i = 1; i < length; ++i) {
    if (i == text.size()) {
      return {Kind::kIncomplete, i};
    }
    if (byte(i) < low || byte(i) > high) {
      return {Kind::kInvalid, i};
    }
    low = 0x80;
    high = 0xBF;
  }
  return {Kind::kCharacter, length};
}

}  // namespace

std::optional<std::size_t> first_invalid_utf8(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const Front front = front_of(text.substr(at));
    if (front.kind != Front::Kind::kCharacter) {
      return at;
    }
    at += front.length;
  }
  return std::nullopt;
}

std::string Utf8Assembler::push(std::string_view bytes) {
  const std::string text = std::exchange(held_, {}).append(bytes);
  std::string complete;
  std::size_t at = 0;
  while (at < text.size()) {
    const Front front = front_of(std::string_view(text).substr(at));
    if (front.kind == Front::Kind::kIncomplete) {
      held_ = text.substr(at);
      break;
    }
    if (front.kind == Front::Kind::kCharacter) {
      complete.append(text, at, front.length);
    } else {
      complete.append(kReplacement);
    }
    at += front.length;
  }
  return complete;
}

std::string Utf8Assembler::finish() {
  return std::exchange(held_, {}).empty() ? std::string() : std::string(kReplacement);
}

}  // namespace karez
