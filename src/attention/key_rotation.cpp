#include "attention/key_rotation.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace karez {
namespace {

constexpr std::size_t kMaxDim = 512;

// +1 or -1 for each coordinate, from the top bits of a 64-bit xorshift generator.
constexpr std::array<float, kMaxDim> make_signs() {
  std::array<float, kMaxDim> signs{};
  std::uint64_t state = 0x9e3779b97f4a7c15U;
  for (float& sign : signs) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    sign = (state >> 63) != 0 ? 1.0F : -1.0F;
  }
  return signs;
}
constexpr std::array<float, kMaxDim> kSigns = make_signs();

// Unnormalised, size a power of two of 16 at least. The first steps work on neighbours; from a
// distance of four on the compiler makes vectors of the inner loop.
void hadamard(float* x, std::size_t size) {
  for (std::size_t i = 0; i < size; i += 4) {
    const float a = x[i] + x[i + 1];
    const float b = x[i] - x[i + 1];
    const float c = x[i + 2] + x[i + 3];
    const float d = x[i + 2] - x[i + 3];
    x[i] = a + c;
    x[i + 1] = b + d;
    x[i + 2] = a - c;
    x[i + 3] = b - d;
  }
  for (std::size_t half = 4; half < size; half *= 2) {
    for (std::size_t first = 0; first < size; first += 2 * half) {
      float* low = x + first;
      float* high = low + half;
      for (std::size_t i = 0; i < half; i += 4) {
        for (std::size_t j = i; j < i + 4; ++j) {
          const float a = low[j];
          const float b = high[j];
          low[j] = a + b;
          high[j] = a - b;
        }
      }
    }
  }
}

}  // namespace

void rotate_key(std::span<float> x) {
  std::size_t at = 0;
  while (at < x.size()) {
    const std::size_t size = std::bit_floor(x.size() - at);
    const float norm = 1.0F / std::sqrt(static_cast<float>(size));
    for (std::size_t i = at; i < at + size; ++i) {
      x[i] *= kSigns[i] * norm;
    }
    hadamard(&x[at], size);
    at += size;
  }
}

void rotate_key_back(std::span<float> x) {
  std::size_t at = 0;
  while (at < x.size()) {
    const std::size_t size = std::bit_floor(x.size() - at);
    const float norm = 1.0F / std::sqrt(static_cast<float>(size));
    hadamard(&x[at], size);
    for (std::size_t i = at; i < at + size; ++i) {
      x[i] *= kSigns[i] * norm;
    }
    at += size;
  }
}

}  // namespace karez
