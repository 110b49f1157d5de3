#include "attention/chunk_kernels.h"
#include "attention/simd_portable.h"

namespace karez {

constinit const KernelSet kPortableKernels = kernel_set<PortableSimd>();

}  // namespace karez
