// The kernels of a CPU level.
//
// Thread: pure functions.
#pragma once

#include "attention/kernel_table.h"
#include "base/cpu_features.h"
#include "kv/kv_types.h"

namespace karez {

const AttentionKernels& kernels_for(CpuLevel level, KvType type);
// Of archived pages.
const AttentionKernels& archive_kernels_for(CpuLevel level);

}  // namespace karez
