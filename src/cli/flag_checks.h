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

// `result` of options whose messages begin with a field's name: with the flag's instead.
Expected<void> as_flag(const Expected<void>& result);

}  // namespace karez
