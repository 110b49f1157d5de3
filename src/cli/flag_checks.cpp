#include "cli/flag_checks.h"

#include <fmt/format.h>

#include <utility>

#include "base/bytes.h"

namespace karez {

Expected<int> in_range(std::string_view flag, std::int64_t value, std::int64_t low,
                       std::int64_t high) {
  if (value < low || value > high) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("{} is {}, allowed are {} to {}", flag, value, low, high));
  }
  return static_cast<int>(value);
}

int RangeCheck::operator()(std::string_view flag, std::int64_t value, std::int64_t low,
                           std::int64_t high) {
  auto checked = in_range(flag, value, low, high);
  if (!checked && result_) {
    result_ = fail(std::move(checked.error()));
  }
  return static_cast<int>(value);
}

Expected<int> context_tokens_of(std::int64_t asked_tokens, int trained_tokens) {
  if (asked_tokens == 0) {
    return trained_tokens;
  }
  if (asked_tokens < 2 || asked_tokens > trained_tokens) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("-c is {}, allowed are 2 to {} (what this model was trained for) and 0 "
                            "(the same)",
                            asked_tokens, trained_tokens));
  }
  return static_cast<int>(asked_tokens);
}

Expected<std::optional<std::int64_t>> optional_size(std::string_view flag, std::string_view text) {
  if (text.empty()) {
    return std::nullopt;
  }
  const auto bytes = parse_bytes(text);
  if (!bytes) {
    return fail(bytes.error().code(), fmt::format("{}: {}", flag, bytes.error().message()));
  }
  return *bytes;
}

Expected<void> as_flag(const Expected<void>& result) {
  return result ? Expected<void>()
                : fail(result.error().code(), fmt::format("--{}", result.error().message()));
}

}  // namespace karez
