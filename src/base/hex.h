// Bytes as hexadecimal digits, two a byte, and back.
//
// Thread: functions without state.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace karez {

// Lower case.
std::string to_hex(std::span<const std::byte> bytes);

// 0-9 and a-f only; of no characters: true.
bool is_lower_hex(std::string_view text);
// Fills all of the bytes from as many pairs of digits, both cases. False: they are not that.
[[nodiscard]] bool parse_hex(std::string_view text, std::span<std::byte> bytes);

}  // namespace karez
