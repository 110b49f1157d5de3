#if defined(__x86_64__)

#include "attention/simd_avx512.h"
#include "compress/window_score_kernels.h"

namespace karez {

int add_weights_avx512(const ScoreTile& tile) { return add_weights<Avx512Simd>(tile); }

}  // namespace karez

#endif
