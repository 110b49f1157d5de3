// Checks that the flags of several commands share. Not the flags themselves.
// Thread: pure.
#pragma once

#include <cstdint>
#include <optional>
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

// Tokens of a context, from -c; 0: as many as the model was trained for. Beyond these it answers
// nonsense, which a newcomer would take for a fault.
// Fails: kInvalidArgument naming the flag, its value and what is allowed.
Expected<int> context_tokens_of(std::int64_t asked_tokens, int trained_tokens);

// Bytes of a size such as 4GiB; nullopt: the text is empty. Fails: as parse_bytes(), naming the
// flag.
Expected<std::optional<std::int64_t>> optional_size(std::string_view flag, std::string_view text);

// `result` of options whose messages begin with a field's name: with the flag's instead.
Expected<void> as_flag(const Expected<void>& result);

}  // namespace karez
