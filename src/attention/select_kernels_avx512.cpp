// BlockSelector's loops with AVX-512. The k-th largest key is found bit by bit: how many keys are
// at least as large is a comparison of 16 keys at a time, which beats any cleverer way for the few
// hundred or thousand blocks of a context.
#if defined(__x86_64__)

#include <immintrin.h>

#include "attention/select_kernels.h"
#include "attention/simd_avx512.h"

namespace karez {
namespace {

using Simd = Avx512Simd;
constexpr std::size_t kVector = 16;
// Bits after which the keys that can still be the k-th are put side by side.
constexpr int kFirstBits = 11;

void set_shares(const float* masses, float factor, float* scores, std::size_t count) {
  const __m512 factors = Simd::broadcast(factor);
  std::size_t i = 0;
  for (; i + kVector <= count; i += kVector) {
    Simd::store(scores + i, Simd::mul(Simd::load(masses + i), factors));
  }
  for (; i < count; ++i) {
    scores[i] = masses[i] * factor;
  }
}

void add_shares(const float* masses, float factor, float* scores, std::size_t count) {
  const __m512 factors = Simd::broadcast(factor);
  std::size_t i = 0;
  for (; i + kVector <= count; i += kVector) {
    const __m512 shares = Simd::mul(Simd::load(masses + i), factors);
    Simd::store(scores + i, Simd::add(Simd::load(scores + i), shares));
  }
  for (; i < count; ++i) {
    scores[i] += masses[i] * factor;
  }
}

float largest(const float* x, std::size_t count) {
  const __m512 none = Simd::broadcast(-__builtin_inff());
  __m512 best = none;
  std::size_t i = 0;
  // The second operand wins over what is no number.
  for (; i + kVector <= count; i += kVector) {
    best = _mm512_max_ps(Simd::load(x + i), best);
  }
  if (i < count) {
    const auto present = static_cast<__mmask16>((1U << (count - i)) - 1U);
    best = _mm512_max_ps(_mm512_mask_loadu_ps(none, present, x + i), best);
  }
  return Simd::reduce_max(best);
}

// Ascending as the numbers are; 0 for what is no number.
__m512i order_keys(__m512 x) {
  const __m512i bits = _mm512_castps_si512(Simd::add(x, Simd::zero()));  // -0 becomes 0
  const __m512i flip = _mm512_or_si512(_mm512_srai_epi32(bits, 31), _mm512_set1_epi32(1 << 31));
  const __mmask16 number = _mm512_cmp_ps_mask(x, x, _CMP_ORD_Q);
  return _mm512_maskz_xor_epi32(number, bits, flip);
}

std::size_t count_from(const std::uint32_t* keys, std::size_t num_vectors, std::uint32_t least) {
  const __m512i bound = _mm512_set1_epi32(static_cast<int>(least));
  const __m512i one = _mm512_set1_epi32(1);
  __m512i even = _mm512_setzero_si512();
  __m512i odd = _mm512_setzero_si512();
  const auto at = [&](std::size_t v) {
    return _mm512_cmpge_epu32_mask(_mm512_loadu_si512(keys + v * kVector), bound);
  };
  std::size_t v = 0;
  for (; v + 2 <= num_vectors; v += 2) {
    even = _mm512_mask_add_epi32(even, at(v), even, one);
    odd = _mm512_mask_add_epi32(odd, at(v + 1), odd, one);
  }
  if (v < num_vectors) {
    even = _mm512_mask_add_epi32(even, at(v), even, one);
  }
  return static_cast<std::size_t>(_mm512_reduce_add_epi32(_mm512_add_epi32(even, odd)));
}

// Writes 0 up to the next whole vector, and returns the number of vectors.
std::size_t pad(std::uint32_t* keys, std::size_t count) {
  _mm512_storeu_si512(keys + count, _mm512_setzero_si512());
  return (count + kVector - 1) / kVector;
}

// Of the keys in [low, low + 2^bits) those side by side, padded; the number of vectors.
std::size_t keep_candidates(const std::uint32_t* keys, std::size_t num_vectors, std::uint32_t low,
                            int bits, std::uint32_t* out) {
  const __m512i first = _mm512_set1_epi32(static_cast<int>(low));
  const __m512i size = _mm512_set1_epi32(1 << bits);
  std::size_t count = 0;
  for (std::size_t v = 0; v < num_vectors; ++v) {
    const __m512i x = _mm512_loadu_si512(keys + v * kVector);
    const __mmask16 kept = _mm512_cmplt_epu32_mask(_mm512_sub_epi32(x, first), size);
    _mm512_storeu_si512(out + count, _mm512_maskz_compress_epi32(kept, x));
    count += static_cast<std::size_t>(__builtin_popcount(kept));
  }
  return pad(out, count);
}

struct Threshold {
  std::uint32_t key;      // the k-th largest
  std::size_t num_equal;  // how many of the keys equal to it are among the k largest
};

// keys: padded with zeros, which lose to all others.
Threshold find_threshold(const std::uint32_t* keys, std::size_t num_vectors, std::uint32_t largest,
                         std::size_t k, std::uint32_t* candidates) {
  std::uint32_t key = 0;
  std::size_t num_larger = 0;  // keys above all that begin with the bits of `key` found so far
  const auto find_bits = [&](int first, int last) {
    for (int bit = first; bit >= last; --bit) {
      const std::uint32_t tried = key | 1U << bit;
      if (tried > largest) {
        continue;
      }
      const std::size_t count = count_from(keys, num_vectors, tried);
      if (count >= k) {
        key = tried;
      } else {
        num_larger = count;
      }
    }
  };
  constexpr int kRest = 32 - kFirstBits;
  find_bits(31, kRest);
  num_vectors = keep_candidates(keys, num_vectors, key, kRest, candidates);
  keys = candidates;
  k -= num_larger;
  num_larger = 0;
  find_bits(kRest - 1, 0);
  return {key, k - num_larger};
}

// So many of the lowest bits that are set.
__mmask16 lowest(__mmask16 mask, std::size_t count) {
  unsigned kept = mask;
  while (static_cast<std::size_t>(__builtin_popcount(kept)) > count) {
    kept &= ~(1U << (31 - __builtin_clz(kept)));
  }
  return static_cast<__mmask16>(kept);
}

void top_k(const float* scores, std::size_t count, std::size_t k, std::int32_t* out,
           std::uint32_t* keys, std::uint32_t* other_keys) {
  __m512i largest_keys = _mm512_setzero_si512();
  for (std::size_t i = 0; i < count; i += kVector) {
    const std::size_t left = count - i;
    const auto present = static_cast<__mmask16>(left < kVector ? (1U << left) - 1U : 0xffffU);
    const __m512i x =
        _mm512_maskz_mov_epi32(present, order_keys(_mm512_maskz_loadu_ps(present, scores + i)));
    _mm512_storeu_si512(keys + i, x);
    largest_keys = _mm512_max_epu32(x, largest_keys);
  }
  const std::size_t num_vectors = (count + kVector - 1) / kVector;
  Threshold threshold =
      find_threshold(keys, num_vectors, _mm512_reduce_max_epu32(largest_keys), k, other_keys);
  const __m512i bound = _mm512_set1_epi32(static_cast<int>(threshold.key));
  __m512i indices = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  std::size_t taken = 0;
  for (std::size_t v = 0; taken < k; ++v) {
    const __m512i x = _mm512_loadu_si512(keys + v * kVector);
    const __mmask16 equal = _mm512_cmpeq_epu32_mask(x, bound);
    __mmask16 kept = _mm512_cmpgt_epu32_mask(x, bound);
    if (equal != 0 && threshold.num_equal > 0) {
      const __mmask16 equal_kept = lowest(equal, threshold.num_equal);
      threshold.num_equal -= static_cast<std::size_t>(__builtin_popcount(equal_kept));
      kept = static_cast<__mmask16>(kept | equal_kept);
    }
    const auto num_kept = static_cast<std::size_t>(__builtin_popcount(kept));
    const __m512i found = _mm512_maskz_compress_epi32(kept, indices);
    _mm512_mask_storeu_epi32(out + taken, static_cast<__mmask16>((1U << num_kept) - 1U), found);
    taken += num_kept;
    indices = _mm512_add_epi32(indices, _mm512_set1_epi32(static_cast<int>(kVector)));
  }
}

}  // namespace

constinit const SelectKernels kAvx512SelectKernels = {set_shares, add_shares, largest, top_k};

}  // namespace karez

#endif
