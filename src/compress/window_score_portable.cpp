#include "attention/simd_portable.h"
#include "compress/window_score_kernels.h"

namespace karez {

int add_weights_portable(const ScoreTile& tile) { return add_weights<PortableSimd>(tile); }

}  // namespace karez
