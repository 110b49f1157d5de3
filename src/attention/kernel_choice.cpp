#include "attention/kernel_choice.h"

namespace karez {
namespace {

const KernelSet& kernel_set_for(CpuLevel level) {
  switch (level) {
#if defined(__x86_64__)
    case CpuLevel::kAvx2:
      return kAvx2Kernels;
    case CpuLevel::kAvx512:
      return kAvx512Kernels;
    case CpuLevel::kAvx512Bf16:
      return kAvx512Bf16Kernels;
    case CpuLevel::kAmxBf16:
      return kAmxBf16Kernels;
#endif
    default:
      return kPortableKernels;
  }
}

}  // namespace

const AttentionKernels& kernels_for(CpuLevel level, KvType type) {
  const KernelSet& set = kernel_set_for(level);
  switch (type) {
    case KvType::kF32:
      return set.f32;
    case KvType::kBf16:
      return set.bf16;
    case KvType::kQ8_0:
      break;
  }
  return set.q8_0;
}

const AttentionKernels& archive_kernels_for(CpuLevel level) { return kernel_set_for(level).r4; }

}  // namespace karez
