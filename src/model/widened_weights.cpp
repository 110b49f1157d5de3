#include "model/widened_weights.h"

#include <cstdint>
#include <cstring>

#include "base/check.h"

namespace karez {
namespace {

constexpr int kBlockElements = 32;

// The blocks as they lie in a GGUF file.
struct Q5Block {
  std::uint16_t scale;  // f16
  std::uint8_t high_bits[4];
  std::uint8_t low_bits[kBlockElements / 2];  // element i and, in the upper half, element i + 16
};
struct Q8Block {
  std::uint16_t scale;
  std::int8_t values[kBlockElements];
};
static_assert(sizeof(Q5Block) == 22 && sizeof(Q8Block) == 34);

Q8Block widened(const Q5Block& block) {
  constexpr int kHalf = kBlockElements / 2;
  constexpr int kZero = 16;
  std::uint32_t high = 0;
  std::memcpy(&high, block.high_bits, sizeof high);
  Q8Block result{};
  result.scale = block.scale;
  for (int i = 0; i < kHalf; ++i) {
    const int first = (block.low_bits[i] & 0xF) | static_cast<int>(high >> i & 1U) << 4;
    const int second = block.low_bits[i] >> 4 | static_cast<int>(high >> (i + kHalf) & 1U) << 4;
    result.values[i] = static_cast<std::int8_t>(first - kZero);
    result.values[i + kHalf] = static_cast<std::int8_t>(second - kZero);
  }
  return result;
}

}  // namespace

std::optional<std::uint32_t> widened_type(std::uint32_t type) {
  return type == kGgufQ5_0 ? std::optional(kGgufQ8_0) : std::nullopt;
}

void widen(std::uint32_t type, std::span<const std::byte> from, std::int64_t num_elements,
           std::byte* to) {
  KAREZ_CHECK(type == kGgufQ5_0, "the only type with a wider one");
  const auto num_blocks = static_cast<std::size_t>(num_elements / kBlockElements);
  for (std::size_t i = 0; i < num_blocks; ++i) {
    Q5Block block;
    std::memcpy(&block, from.data() + i * sizeof block, sizeof block);
    const Q8Block wide = widened(block);
    std::memcpy(to + i * sizeof wide, &wide, sizeof wide);
  }
}

}  // namespace karez
