// Sixteen floats in two AVX2 registers, with FMA. Members as in simd_portable.h.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "attention/kernel_common.h"
#include "attention/kernel_table.h"

namespace karez {
namespace {

struct Avx2Simd {
  struct F {
    __m256 lo;
    __m256 hi;
  };
  static constexpr int kRows = 4;
  static constexpr int kValueRows = 4;
  static constexpr int kValueVectors = 1;
  template <int R>
  static constexpr int blocks_for_rows() {
    return R == 1 ? 4 : R == 2 ? 2 : 1;
  }

  static F broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static void store(float* p, F x) {
    _mm256_storeu_ps(p, x.lo);
    _mm256_storeu_ps(p + 8, x.hi);
  }
  static F add(F a, F b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
  static F sub(F a, F b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
  static F mul(F a, F b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
  static F div(F a, F b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
  static F max(F a, F b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
  static F fma(F a, F b, F c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
  }
  static F fms(F a, F b, F c) {
    return {_mm256_fmsub_ps(a.lo, b.lo, c.lo), _mm256_fmsub_ps(a.hi, b.hi, c.hi)};
  }
  static F round(F x) {
    constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(x.lo, kMode), _mm256_round_ps(x.hi, kMode)};
  }
  static F scale_by_pow2(F p, F n, F x) {
    return {scale_half(p.lo, n.lo, x.lo), scale_half(p.hi, n.hi, x.hi)};
  }
  static F copy_sign(F magnitude, F sign) {
    const __m256 mask = _mm256_set1_ps(-0.0F);
    return {_mm256_or_ps(_mm256_andnot_ps(mask, magnitude.lo), _mm256_and_ps(mask, sign.lo)),
            _mm256_or_ps(_mm256_andnot_ps(mask, magnitude.hi), _mm256_and_ps(mask, sign.hi))};
  }
  static F keep_lanes(F x, int lo, int hi, float fill) {
    float lanes[kLanes];
    store(lanes, x);
    for (int i = 0; i < kLanes; ++i) {
      lanes[i] = i >= lo && i < hi ? lanes[i] : fill;
    }
    return load(lanes);
  }
  static float reduce_max(F x) {
    const __m256 m = _mm256_max_ps(x.lo, x.hi);
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
  }
  static float reduce_add(F x) {
    const __m256 m = _mm256_add_ps(x.lo, x.hi);
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
  }
  static float first_lane(F x) { return _mm256_cvtss_f32(x.lo); }

  static void widen_to_bf16(const std::int8_t* from, std::uint16_t* to, std::size_t count) {
    for (std::size_t i = 0; i < count; i += 16) {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
      const __m256i lo = high_halves(_mm256_cvtepi8_epi32(bytes));
      const __m256i hi = high_halves(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)));
      const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(lo, hi), 0xd8);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), packed);
    }
  }

  static void widen_codes(const std::byte* from, std::uint16_t* to, std::size_t count) {
    const __m256i low_bytes = code_bytes(0);
    const __m256i high_bytes = code_bytes(8);
    const __m256i nibble = _mm256_set1_epi16(15);
    const __m256i no_high = _mm256_set1_epi16(-0x8000);
    const __m256i no_low = _mm256_set1_epi16(0x80);
    for (std::size_t i = 0; i < count; i += 128) {
      for (std::size_t half = 0; half < 32; half += 16) {
        const __m256i words =
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i / 2 + half * 2));
        for (int k = 0; k < 4; ++k) {
          const __m256i codes = _mm256_and_si256(_mm256_srli_epi16(words, 4 * k), nibble);
          const __m256i low = _mm256_shuffle_epi8(low_bytes, _mm256_or_si256(codes, no_high));
          const __m256i high =
              _mm256_shuffle_epi8(high_bytes, _mm256_or_si256(_mm256_slli_epi16(codes, 8), no_low));
          _mm256_storeu_si256(
              reinterpret_cast<__m256i*>(to + i + static_cast<std::size_t>(k) * 32 + half),
              _mm256_or_si256(low, high));
        }
      }
    }
  }

  struct Bf16Dot {
    struct Line {
      F even;
      F odd;
    };
    // One vector holds the sum: nothing to fold.
    using Sum = F;
    static Sum clear() { return Avx2Simd::zero(); }
    static Sum fold(Sum sum) { return sum; }
    static F total(Sum sum) { return sum; }
    static constexpr int kPerLine = 2;
    static constexpr std::size_t kElementBytes = 4;
    static constexpr bool kAccurateExp = false;

    static Line load(const std::byte* p) {
      const __m256i lo = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
      const __m256i hi = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32));
      const __m256i mask = _mm256_set1_epi32(~0xffff);
      return {{_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)),
               _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16))},
              {_mm256_castsi256_ps(_mm256_and_si256(lo, mask)),
               _mm256_castsi256_ps(_mm256_and_si256(hi, mask))}};
    }
    static F step(F acc, const std::byte* row, int line, const Line& l) {
      const float* pair = reinterpret_cast<const float*>(row) + 2 * line;
      return fma(broadcast(pair[1]), l.odd, fma(broadcast(pair[0]), l.even, acc));
    }
    static F store(std::byte* p, F x) {
      const F rounded = {round_to_bf16(x.lo), round_to_bf16(x.hi)};
      Avx2Simd::store(reinterpret_cast<float*>(p), rounded);
      return rounded;
    }
  };

 private:
  static __m256 scale_half(__m256 p, __m256 n, __m256 x) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    const __m256 factor = _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
    const __m256 kept = _mm256_cmp_ps(x, _mm256_set1_ps(-126.0F), _CMP_NLT_UQ);
    return _mm256_and_ps(kept, _mm256_mul_ps(p, factor));
  }
  // Bits [shift, shift + 8) of the levels, for both halves of a shuffle.
  static __m256i code_bytes(int shift) {
    alignas(16) std::uint8_t bytes[16];
    for (int i = 0; i < 16; ++i) {
      bytes[i] = static_cast<std::uint8_t>(kCodeLevels[i] >> shift);
    }
    return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes)));
  }
  static __m256i high_halves(__m256i x) {
    return _mm256_srli_epi32(_mm256_castps_si256(_mm256_cvtepi32_ps(x)), 16);
  }
  static __m256 round_to_bf16(__m256 x) {
    const __m256i u = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    return _mm256_castsi256_ps(_mm256_and_si256(sum, _mm256_set1_epi32(~0xffff)));
  }
};

}  // namespace
}  // namespace karez
