#include "attention/index_query.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <algorithm>
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
  float largest = 0.0F;
  bool finite = true;
  for (const float x : rotated_) {
    largest = std::max(largest, std::fabs(x));
    finite = finite && std::isfinite(x);
  }
  const float inverse = kLargestCode / largest;
  const bool usable = finite && std::isfinite(inverse);
  int sum = 0;
  for (std::size_t i = 0; i < rotated_.size(); ++i) {
    const float x = usable ? rotated_[i] * inverse : 0.0F;
    const auto code = static_cast<std::int8_t>(x + (x < 0.0F ? -0.5F : 0.5F));
    codes_[vector * rotated_.size() + i] = code;
    sum += code;
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
