// What the kernels of all phases share: f32 dot products, exp2, groups of rows, prefetching.
//
// Part of chunk_kernels.h, with the same rules: unnamed namespace, no library functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/kernel_table.h"

namespace karez {
namespace {

constexpr std::size_t kLaneBytes = 64;    // one key or value line: 16 lanes x 4 bytes
constexpr float kMaskedScore = -1.0e30F;  // finite, so that no inf - inf arises
constexpr int kPrefetchLocality = 2;      // into L2: a chunk is as large as L1

// The levels of the codes of archived pages, code - 7.5, as bf16.
constexpr std::uint16_t kCodeLevels[16] = {0xc0f0, 0xc0d0, 0xc0b0, 0xc090, 0xc060, 0xc020,
                                           0xbfc0, 0xbf00, 0x3f00, 0x3fc0, 0x4020, 0x4060,
                                           0x4090, 0x40b0, 0x40d0, 0x40f0};

// Key lines after which Dot::fold() is called: those of an AMX tile.
constexpr int kLinesPerFold = 16;

// Dot products of f32 elements: one coordinate (or token) at a time.
template <class Simd>
struct F32Dot {
  using F = typename Simd::F;
  using Line = F;
  // One vector holds the sum: nothing to fold.
  using Sum = F;
  static Sum clear() { return Simd::zero(); }
  static Sum fold(Sum sum) { return sum; }
  static F total(Sum sum) { return sum; }
  static constexpr int kPerLine = 1;
  static constexpr std::size_t kElementBytes = 4;  // of queries and weights
  static constexpr bool kAccurateExp = true;

  static Line load(const std::byte* p) { return Simd::load(reinterpret_cast<const float*>(p)); }
  static F step(F acc, const std::byte* row, int line, Line l) {
    return Simd::fma(Simd::broadcast(reinterpret_cast<const float*>(row)[line]), l, acc);
  }
  // Stores 16 elements and returns them as the dot product will see them.
  static F store(std::byte* p, F values) {
    Simd::store(reinterpret_cast<float*>(p), values);
    return values;
  }
};

// 2^x for x <= 0; exactly 1 for 0 and exactly +0 below -126. Polynomials: Chebyshev interpolation
// of (2^r - 1) / r on [-1/2, 1/2]. Relative error: 1.2e-7 (accurate), 7e-6 (otherwise; far below
// the 2e-3 of rounding a weight to bf16).
template <class Simd, bool accurate>
inline typename Simd::F exp2_nonpositive(typename Simd::F x) {
  using F = typename Simd::F;
  const F n = Simd::round(x);
  const F r = Simd::sub(x, n);
  F p;
  if constexpr (accurate) {
    p = Simd::fma(Simd::broadcast(0.000154531629F), r, Simd::broadcast(0.00133908634F));
    p = Simd::fma(p, r, Simd::broadcast(0.00961808256F));
    p = Simd::fma(p, r, Simd::broadcast(0.0555035711F));
    p = Simd::fma(p, r, Simd::broadcast(0.240226508F));
    p = Simd::fma(p, r, Simd::broadcast(0.693147188F));
  } else {
    p = Simd::fma(Simd::broadcast(0.00965671029F), r, Simd::broadcast(0.0558382829F));
    p = Simd::fma(p, r, Simd::broadcast(0.240225301F));
    p = Simd::fma(p, r, Simd::broadcast(0.693136734F));
  }
  p = Simd::fma(p, r, Simd::broadcast(1.0F));
  return Simd::scale_by_pow2(p, n, x);
}

inline void prefetch_line(const std::byte* p) { __builtin_prefetch(p, 0, kPrefetchLocality); }

// Calls body.template operator()<R>(row) for groups of rows that cover [0, num_rows).
template <int max_rows, class Body>
inline void for_row_groups(int num_rows, const Body& body) {
  int row = 0;
  for (; row + max_rows <= num_rows; row += max_rows) {
    body.template operator()<max_rows>(row);
  }
  if constexpr (max_rows > 1) {
    switch (num_rows - row) {
      case 1:
        body.template operator()<1>(row);
        break;
      case 2:
        if constexpr (max_rows > 2) body.template operator()<2>(row);
        break;
      case 3:
        if constexpr (max_rows > 3) body.template operator()<3>(row);
        break;
      case 4:
        if constexpr (max_rows > 4) body.template operator()<4>(row);
        break;
      case 5:
        if constexpr (max_rows > 5) body.template operator()<5>(row);
        break;
      default:
        break;
    }
  }
}

}  // namespace
}  // namespace karez
