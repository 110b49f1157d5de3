// Sixteen 32-bit words of codes in one AVX-512 register: the integer half of Avx512Simd.
#pragma once

#include "attention/index_scan.h"
#include "attention/simd_avx512.h"

namespace karez {
namespace {

struct Avx512Ints {
  using Words = __m512i;
  using Sum = __m512i;

  static Words load(const std::byte* p) { return _mm512_loadu_si512(p); }
  template <int n>
  static Words shift_right(Words w) {
    return _mm512_srli_epi32(w, n);
  }
  static Words low_bits(Words w) { return _mm512_and_si512(w, _mm512_set1_epi32(0x03030303)); }
  static Words with_third_bit(Words w, Words high) {
    const Words bit = _mm512_and_si512(high, _mm512_set1_epi32(0x01010101));
    return _mm512_or_si512(w, _mm512_slli_epi32(bit, 2));
  }
  static Sum clear() { return _mm512_setzero_si512(); }
  // Pairs of products are at most 2 x 7 x 127: 16 bits hold them.
  static Sum dot(Sum sum, Words w, const std::int8_t* query) {
    const __m512i pairs = _mm512_maddubs_epi16(w, broadcast_four(query));
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

 protected:
  static __m512i broadcast_four(const std::int8_t* query) {
    std::int32_t four;
    __builtin_memcpy(&four, query, sizeof four);
    return _mm512_set1_epi32(four);
  }
};

}  // namespace
}  // namespace karez
