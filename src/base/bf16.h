// bf16 as 16 bits: the upper half of a float.
//
// Thread: pure functions.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace karez {

// To nearest, ties to even; NaN stays NaN.
inline std::uint16_t to_bf16(float x) {
  const auto u = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (u + 0x7fffU + ((u >> 16) & 1U)) >> 16;
  return static_cast<std::uint16_t>(std::isnan(x) ? (u >> 16) | 0x40U : rounded);
}

inline float from_bf16(std::uint16_t x) { return std::bit_cast<float>(std::uint32_t{x} << 16); }

}  // namespace karez
