// AVX-512 with vdpbf16ps: queries and weights are pairs of bf16, as keys and values are.
#pragma once

#include "attention/simd_avx512.h"

namespace karez {
namespace {

struct Avx512Bf16Simd : Avx512Simd {
  struct Bf16Dot {
    using Line = __m512i;
    // One vector holds the sum: nothing to fold.
    using Sum = F;
    static Sum clear() { return Avx512Simd::zero(); }
    static Sum fold(Sum sum) { return sum; }
    static F total(Sum sum) { return sum; }
    static constexpr int kPerLine = 2;
    static constexpr std::size_t kElementBytes = 2;
    static constexpr bool kAccurateExp = false;

    static Line load(const std::byte* p) { return _mm512_loadu_si512(p); }
    static F step(F acc, const std::byte* row, int line, Line l) {
      const __m512i pair = _mm512_set1_epi32(reinterpret_cast<const std::int32_t*>(row)[line]);
      return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(pair), reinterpret_cast<__m512bh>(l));
    }
    static F store(std::byte* p, F x) {
      const __m256i halves = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), halves);
      return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
    }
  };
};

}  // namespace
}  // namespace karez
