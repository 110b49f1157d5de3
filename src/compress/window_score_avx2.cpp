#if defined(__x86_64__)

#include "attention/simd_avx2.h"
#include "compress/window_score_kernels.h"

namespace karez {

int add_weights_avx2(const ScoreTile& tile) { return add_weights<Avx2Simd>(tile); }

}  // namespace karez

#endif
