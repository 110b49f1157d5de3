#include "attention/index_query.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>

#include "attention/key_rotation.h"

namespace karez {
namespace {

const IndexKernels& kernels_for(CpuLevel level) {
#if defined(__x86_64__)
  static const bool has_vnni = __builtin_cpu_supports("avx512vnni") != 0;
  // Processors with AVX512_BF16 have VNNI, but a hypervisor may hide it.
  if (level >= CpuLevel::kAvx512Bf16 && has_vnni) {
    return kAvx512VnniIndexKernels;
  }
  if (level >= CpuLevel::kAvx512) {
    return kAvx512IndexKernels;
  }
  if (level >= CpuLevel::kAvx2) {
    return kAvx2IndexKernels;
  }
#endif
  return kPortableIndexKernels;
}

}  // namespace

IndexQueries::IndexQueries(int group, int head_dim)
    : group_(group),
      head_dim_(head_dim),
      rotated_(static_cast<std::size_t>(head_dim)),
      codes_(static_cast<std::size_t>(group * head_dim)),
      factors_(static_cast<std::size_t>(group)),
      offsets_(static_cast<std::size_t>(group)),
      scaled_(static_cast<std::size_t>(group * head_dim)) {}

void IndexQueries::prepare(KeyIndexKind kind, const float* queries, float score_scale) {
  const auto dim = static_cast<std::size_t>(head_dim_);
  if (!codes_tokens(kind)) {
    for (std::size_t i = 0; i < scaled_.size(); ++i) {
      scaled_[i] = queries[i] * score_scale;
    }
    return;
  }
  for (std::size_t v = 0; v < factors_.size(); ++v) {
    prepare_codes(kind, v, queries + v * dim, score_scale);
  }
}

void IndexQueries::prepare_codes(KeyIndexKind kind, std::size_t vector, const float* query,
                                 float score_scale) {
  constexpr float kLargestCode = 127.0F;
  std::copy_n(query, rotated_.size(), rotated_.data());
  rotate_key(rotated_);
  // Magnitudes as integers are ordered alike, and the compiler makes vectors of that.
  constexpr std::int32_t kMagnitudeBits = 0x7fffffff;
  constexpr std::int32_t kInfinity = 0x7f800000;
  std::int32_t largest_bits = 0;
  for (const float x : rotated_) {
    largest_bits = std::max(largest_bits, std::bit_cast<std::int32_t>(x) & kMagnitudeBits);
  }
  const auto largest = std::bit_cast<float>(largest_bits);
  const float inverse = kLargestCode / largest;
  const bool usable = largest_bits < kInfinity && std::isfinite(inverse);
  std::int8_t* codes = &codes_[vector * rotated_.size()];
  std::int32_t sum = 0;
  if (usable) {
    const float* rotated = rotated_.data();
    for (std::size_t i = 0; i < rotated_.size(); ++i) {
      const float x = rotated[i] * inverse;
      const auto code = static_cast<std::int32_t>(x + (x < 0.0F ? -0.5F : 0.5F));
      codes[i] = static_cast<std::int8_t>(code);
      sum += code;
    }
  } else {
    std::fill_n(codes, rotated_.size(), std::int8_t{0});
  }
  factors_[vector] = usable ? largest / kLargestCode * score_scale : 0.0F;
  offsets_[vector] = code_offset(kind) * static_cast<float>(sum);
}

IndexQuery IndexQueries::view() const {
  return {head_dim_, group_, codes_.data(), factors_.data(), offsets_.data(), scaled_.data()};
}

namespace {

ScanKernel kernel_of(const IndexKernels& kernels, KeyIndexKind kind) {
  switch (kind) {
    case KeyIndexKind::kR2:
      return kernels.r2;
    case KeyIndexKind::kR3:
      return kernels.r3;
    case KeyIndexKind::kMinMax:
      return kernels.min_max;
    case KeyIndexKind::kMean:
      break;
  }
  return kernels.mean;
}

}  // namespace

IndexScan::IndexScan(CpuLevel level, KeyIndexKind kind)
    : scan_(kernel_of(kernels_for(level), kind)) {
#if defined(__x86_64__)
  constexpr unsigned kFlushAndZero = 0x8040;
  control_ = _mm_getcsr();
  _mm_setcsr(control_ | kFlushAndZero);
#endif
}

IndexScan::~IndexScan() {
#if defined(__x86_64__)
  _mm_setcsr(control_);
#endif
}

}  // namespace karez
