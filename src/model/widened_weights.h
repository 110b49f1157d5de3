// Weights of a type without a fast product, as exactly the same numbers in a type that has one.
//
// q5_0 -> q8_0: both are blocks of 32 with one f16 scale; the 5-bit codes, minus 16, are bytes of
// q8_0. 34 bytes a block in place of 22. Files of small models have q5_0 where a row is no multiple
// of 256 and K-quants do not fit.
// Thread: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace karez {

// Types as GGUF files number them.
inline constexpr std::uint32_t kGgufQ5_0 = 6;
inline constexpr std::uint32_t kGgufQ8_0 = 8;

// The wider type that holds all values of `type`; none for most types.
std::optional<std::uint32_t> widened_type(std::uint32_t type);

// Requires: widened_type(type) is set; from holds num_elements of `type`, a multiple of 32; `to`
// has room for as many of the wider type. They do not overlap.
void widen(std::uint32_t type, std::span<const std::byte> from, std::int64_t num_elements,
           std::byte* to);

}  // namespace karez
