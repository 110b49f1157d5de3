#if defined(__x86_64__)

#include "attention/index_scan.h"
#include "attention/index_summaries.h"
#include "attention/simd_avx2.h"

namespace karez {
namespace {

struct Avx2Ints {
  struct Words {
    __m256i lo;
    __m256i hi;
  };
  using Sum = Words;
  static constexpr int kBlocks = 1;

  static Words load(const std::byte* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
  }
  template <int n>
  static Words shift_right(const Words& w) {
    return {_mm256_srli_epi32(w.lo, n), _mm256_srli_epi32(w.hi, n)};
  }
  template <int n>
  static Words field(const Words& w) {
    return masked(shift_right<n>(w), 0x03030303);
  }
  static Words with_third_bit(const Words& w, const Words& high) {
    const Words bit = masked(high, 0x01010101);
    return {_mm256_or_si256(w.lo, _mm256_slli_epi32(bit.lo, 2)),
            _mm256_or_si256(w.hi, _mm256_slli_epi32(bit.hi, 2))};
  }
  static Sum clear() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  // Pairs of products are at most 2 x 7 x 127: 16 bits hold them.
  static __m256i four_of_query(const std::int8_t* query) {
    std::int32_t four;
    __builtin_memcpy(&four, query, sizeof four);
    return _mm256_set1_epi32(four);
  }
  static Sum dot(const Sum& sum, const Words& w, __m256i q) {
    const __m256i ones = _mm256_set1_epi16(1);
    return {_mm256_add_epi32(sum.lo, _mm256_madd_epi16(_mm256_maddubs_epi16(w.lo, q), ones)),
            _mm256_add_epi32(sum.hi, _mm256_madd_epi16(_mm256_maddubs_epi16(w.hi, q), ones))};
  }
  static Avx2Simd::F to_float(const Sum& sum) {
    return {_mm256_cvtepi32_ps(sum.lo), _mm256_cvtepi32_ps(sum.hi)};
  }
  static Avx2Simd::F widen_bf16(const std::byte* p) {
    const auto* halves = reinterpret_cast<const __m128i*>(p);
    return {widen(_mm_loadu_si128(halves)), widen(_mm_loadu_si128(halves + 1))};
  }
  static Avx2Simd::F sum_each(const Avx2Simd::F* vectors) {
    return sum_each_by_one<Avx2Simd>(vectors);
  }
  static Avx2Simd::F exp2_of(const Avx2Simd::F& x) { return exp2_nonpositive<Avx2Simd, false>(x); }

 private:
  static Words masked(const Words& w, int mask) {
    return {_mm256_and_si256(w.lo, _mm256_set1_epi32(mask)),
            _mm256_and_si256(w.hi, _mm256_set1_epi32(mask))};
  }
  static __m256 widen(__m128i halves) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
};

}  // namespace

constinit const IndexKernels kAvx2IndexKernels = index_kernels<Avx2Simd, Avx2Ints>();

}  // namespace karez

#endif
