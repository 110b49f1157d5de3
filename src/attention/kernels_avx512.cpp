#if defined(__x86_64__)

#include "attention/chunk_kernels.h"
#include "attention/simd_avx512.h"

namespace karez {

constinit const KernelSet kAvx512Kernels = kernel_set<Avx512Simd>();

}  // namespace karez

#endif
