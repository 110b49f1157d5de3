#if defined(__x86_64__)

#include "attention/chunk_kernels.h"
#include "attention/simd_avx512_bf16.h"

namespace karez {

constinit const KernelSet kAvx512Bf16Kernels = kernel_set<Avx512Bf16Simd>();

}  // namespace karez

#endif
