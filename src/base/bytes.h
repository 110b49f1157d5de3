// Byte quantities as people write them: "512", "64KiB", "1.5GiB", "2GB".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace karez {

inline constexpr std::int64_t kKiB = 1024;
inline constexpr std::int64_t kMiB = 1024 * kKiB;
inline constexpr std::int64_t kGiB = 1024 * kMiB;

// Units: none or B, KiB MiB GiB TiB (1024), KB MB GB TB (1000); case does not matter; K M G T alone
// mean KiB MiB GiB TiB, as llama.cpp and systemd read them.
// Fractions of a byte are cut off.
// Fails: kInvalidArgument naming the text, for anything else, negative values and 2^63 or more.
Expected<std::int64_t> parse_bytes(std::string_view text);

// "182.4 MiB": one decimal, binary units; "512 B" below 1 KiB.
std::string format_bytes(std::int64_t bytes);

}  // namespace karez
