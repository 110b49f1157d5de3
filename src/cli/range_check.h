// Reads numbers of flags and keeps the first problem, so that the caller asks once.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/status.h"

namespace karez {

class RangeCheck {
 public:
  int operator()(std::string_view flag, std::int64_t value, std::int64_t low, std::int64_t high) {
    if ((value < low || value > high) && !problem_) {
      problem_ = Status(StatusCode::kInvalidArgument,
                        fmt::format("{} is {}, allowed are {} to {}", flag, value, low, high));
    }
    return static_cast<int>(value);
  }
  std::optional<Status> problem_;
};

}  // namespace karez
