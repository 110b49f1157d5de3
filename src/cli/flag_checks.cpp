#include "cli/flag_checks.h"

#include <fmt/format.h>

#include <utility>

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

Expected<void> as_flag(const Expected<void>& result) {
  return result ? Expected<void>()
                : fail(result.error().code(), fmt::format("--{}", result.error().message()));
}

}  // namespace karez
