// Sixteen floats in one AVX-512 register. Members as in simd_portable.h.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "attention/kernel_common.h"
#include "attention/kernel_table.h"

namespace karez {
namespace {

struct Avx512Simd {
  using F = __m512;
  static constexpr int kRows = 6;
  static constexpr int kValueRows = 6;
  static constexpr int kValueVectors = 4;
  template <int R>
  static constexpr int blocks_for_rows() {
    return R == 1 ? 8 : 4;
  }

  static F broadcast(float x) { return _mm512_set1_ps(x); }
  static F zero() { return _mm512_setzero_ps(); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F fms(F a, F b, F c) { return _mm512_fmsub_ps(a, b, c); }
  static F round(F x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static F scale_by_pow2(F p, F n, F x) {
    const __mmask16 kept = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0F), _CMP_NLT_UQ);
    return _mm512_maskz_scalef_ps(kept, p, n);
  }
  static F copy_sign(F magnitude, F sign) {
    const __m512 mask = _mm512_set1_ps(-0.0F);
    return _mm512_or_ps(_mm512_andnot_ps(mask, magnitude), _mm512_and_ps(mask, sign));
  }
  static F keep_lanes(F x, int lo, int hi, float fill) {
    const unsigned kept = (0xffffU << lo) & ((1U << hi) - 1U);
    return _mm512_mask_blend_ps(static_cast<__mmask16>(kept), _mm512_set1_ps(fill), x);
  }
  static float reduce_max(F x) { return _mm512_reduce_max_ps(x); }
  static float reduce_add(F x) { return _mm512_reduce_add_ps(x); }
  static float first_lane(F x) { return _mm512_cvtss_f32(x); }

  static void widen_to_bf16(const std::int8_t* from, std::uint16_t* to, std::size_t count) {
    for (std::size_t i = 0; i < count; i += 16) {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
      const __m512 floats = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
      const __m512i words = _mm512_srli_epi32(_mm512_castps_si512(floats), 16);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), _mm512_cvtepi32_epi16(words));
    }
  }

  static void widen_codes(const std::byte* from, std::uint16_t* to, std::size_t count) {
    // Two copies of the levels: the bit above a nibble does not matter.
    const __m512i levels =
        _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(kCodeLevels)));
    for (std::size_t i = 0; i < count; i += 128) {
      const __m512i words = _mm512_loadu_si512(from + i / 2);
      _mm512_storeu_si512(to + i, _mm512_permutexvar_epi16(words, levels));
      _mm512_storeu_si512(to + i + 32,
                          _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 4), levels));
      _mm512_storeu_si512(to + i + 64,
                          _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 8), levels));
      _mm512_storeu_si512(to + i + 96,
                          _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 12), levels));
    }
  }

  struct Bf16Dot {
    struct Line {
      F even;
      F odd;
    };
    // One vector holds the sum: nothing to fold.
    using Sum = F;
    static Sum clear() { return Avx512Simd::zero(); }
    static Sum fold(Sum sum) { return sum; }
    static F total(Sum sum) { return sum; }
    static constexpr int kPerLine = 2;
    static constexpr std::size_t kElementBytes = 4;
    static constexpr bool kAccurateExp = false;

    static Line load(const std::byte* p) {
      const __m512i words = _mm512_loadu_si512(p);
      return {_mm512_castsi512_ps(_mm512_slli_epi32(words, 16)),
              _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(~0xffff)))};
    }
    static F step(F acc, const std::byte* row, int line, const Line& l) {
      const float* pair = reinterpret_cast<const float*>(row) + 2 * line;
      return fma(broadcast(pair[1]), l.odd, fma(broadcast(pair[0]), l.even, acc));
    }
    static F store(std::byte* p, F x) {
      const __m512i u = _mm512_castps_si512(x);
      const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
      const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
      const F rounded = _mm512_castsi512_ps(_mm512_and_si512(sum, _mm512_set1_epi32(~0xffff)));
      Avx512Simd::store(reinterpret_cast<float*>(p), rounded);
      return rounded;
    }
  };
};

}  // namespace
}  // namespace karez
