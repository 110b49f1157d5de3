#if defined(__x86_64__)

#include "attention/index_ints_avx512.h"

namespace karez {
namespace {

struct Avx512VnniInts : Avx512Ints {
  static Sum dot(Sum sum, Words w, Words four) { return _mm512_dpbusd_epi32(sum, w, four); }
};

}  // namespace

constinit const IndexKernels kAvx512VnniIndexKernels = index_kernels<Avx512Simd, Avx512VnniInts>();

}  // namespace karez

#endif
