#if defined(__x86_64__)

#include "attention/chunk_kernels.h"
#include "attention/simd_avx2.h"

namespace karez {

constinit const KernelSet kAvx2Kernels = kernel_set<Avx2Simd>();

}  // namespace karez

#endif
