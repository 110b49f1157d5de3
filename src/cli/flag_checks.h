// Checks that the flags of several commands share. Not the flags themselves.
// Thread: pure.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/status.h"

namespace karez {

inline constexpr int kMaxThreads = 512;  // ggml's limit
inline constexpr int kMaxTokens = 1 << 24;

// Fails: kInvalidArgument naming the flag, its value and what is allowed.
Expected<int> in_range(std::string_view flag, std::int64_t value, std::int64_t low,
                       std::int64_t high);

// in_range() of several numbers: keeps the first problem, so that the caller asks once.
class RangeCheck {
 public:
  // The number as it is, if it is wrong.
  int operator()(std::string_view flag, std::int64_t value, std::int64_t low, std::int64_t high);
  // Fails: as in_range(), for the first number that was wrong.
  const Expected<void>& result() const { return result_; }

 private:
  Expected<void> result_;
};

// `result` of options whose messages begin with a field's name: with the flag's instead.
Expected<void> as_flag(const Expected<void>& result);

}  // namespace karez
