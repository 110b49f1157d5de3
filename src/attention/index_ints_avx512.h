// Sixteen 32-bit words of codes in one AVX-512 register: the integer half of Avx512Simd.
#pragma once

#include "attention/index_scan.h"
#include "attention/index_summaries.h"
#include "attention/simd_avx512.h"

namespace karez {
namespace {

struct Avx512Ints {
  using Words = __m512i;
  using Sum = __m512i;
  static constexpr int kBlocks =
      2;  // at once: 4 vectors x 2 blocks of sums, and registers to spare

  static Words load(const std::byte* p) {
    Words w = _mm512_loadu_si512(p);
    // Read once: the compiler would read it again for each field, and half of the records lie
    // across the borders of cache lines.
    asm("" : "+v"(w));
    return w;
  }
  template <int n>
  static Words shift_right(Words w) {
    return _mm512_srli_epi32(w, n);
  }
  // Bits n and n + 1 of each byte.
  template <int n>
  static Words field(Words w) {
    return _mm512_and_si512(shift_right<n>(w), _mm512_set1_epi32(0x03030303));
  }
  static Words with_third_bit(Words w, Words high) {
    const Words bit = _mm512_and_si512(high, _mm512_set1_epi32(0x01010101));
    return _mm512_or_si512(w, _mm512_slli_epi32(bit, 2));
  }
  static Sum clear() { return _mm512_setzero_si512(); }
  // Pairs of products are at most 2 x 7 x 127: 16 bits hold them.
  static Words four_of_query(const std::int8_t* query) {
    std::int32_t four;
    __builtin_memcpy(&four, query, sizeof four);
    return _mm512_set1_epi32(four);
  }
  static Sum dot(Sum sum, Words w, Words four) {
    const __m512i pairs = _mm512_maddubs_epi16(w, four);
    return _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
  }
  static Avx512Simd::F to_float(Sum sum) { return _mm512_cvtepi32_ps(sum); }
  static Avx512Simd::F widen_bf16(const std::byte* p) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  }
  // A transposition that adds on the way: 16 -> 8 -> 4 vectors within 128 bits, then across.
  static Avx512Simd::F sum_each(const Avx512Simd::F* v) {
    const auto fours = [v](int i) {
      const __m512 a =
          _mm512_add_ps(_mm512_unpacklo_ps(v[i], v[i + 1]), _mm512_unpackhi_ps(v[i], v[i + 1]));
      const __m512 b = _mm512_add_ps(_mm512_unpacklo_ps(v[i + 2], v[i + 3]),
                                     _mm512_unpackhi_ps(v[i + 2], v[i + 3]));
      const __m512d x = _mm512_castps_pd(a);
      const __m512d y = _mm512_castps_pd(b);
      return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)),
                           _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
    };
    const auto across = [](__m512 a, __m512 b) {
      return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    };
    return across(across(fours(0), fours(4)), across(fours(8), fours(12)));
  }
  // 2^x for x below 128; 0 where that is below the normal range, if denormals are flushed. x -
  // floor(x) is one instruction, and so is the scaling by 2^floor(x): so the polynomial is that of
  // [0, 1), by Chebyshev interpolation. Relative error: 3.5e-6.
  static Avx512Simd::F exp2_of(Avx512Simd::F x) {
    using Simd = Avx512Simd;
    const __m512 r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    __m512 p = Simd::fma(Simd::broadcast(0.0136703094F), r, Simd::broadcast(0.0517449975F));
    p = Simd::fma(p, r, Simd::broadcast(0.241604358F));
    p = Simd::fma(p, r, Simd::broadcast(0.692972898F));
    p = Simd::fma(p, r, Simd::broadcast(1.00000346F));
    return _mm512_scalef_ps(p, x);
  }
};

}  // namespace
}  // namespace karez
