#include "engine/on_miss.h"

#include <fmt/format.h>

#include <charconv>

namespace karez {
namespace {

constexpr std::string_view kBounded = "bounded=";
constexpr int kMaxBound = 1 << 24;

}  // namespace

Expected<OnMiss> parse_on_miss(std::string_view text) {
  if (text == "wait") {
    return OnMiss{};
  }
  if (text.starts_with(kBounded)) {
    const std::string_view number = text.substr(kBounded.size());
    int bound = -1;
    const char* end = number.data() + number.size();
    const auto parsed = std::from_chars(number.data(), end, bound);
    if (parsed.ec == std::errc() && parsed.ptr == end && bound >= 0 && bound <= kMaxBound) {
      return OnMiss{bound};
    }
  }
  return fail(
      StatusCode::kInvalidArgument,
      fmt::format("'{}' is not allowed; allowed are wait, and bounded=N with N from 0 to {}", text,
                  kMaxBound));
}

std::string to_string(const OnMiss& on_miss) {
  return on_miss.bound ? fmt::format("{}{}", kBounded, *on_miss.bound) : "wait";
}

}  // namespace karez
