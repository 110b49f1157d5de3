#if defined(__x86_64__)

#include "attention/index_ints_avx512.h"

namespace karez {

constinit const IndexKernels kAvx512IndexKernels = index_kernels<Avx512Simd, Avx512Ints>();

}  // namespace karez

#endif
