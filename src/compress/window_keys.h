// A stored block's keys as f32 [head_dim][16], the form in which window_score.h multiplies them.
//
// Thread: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kv/kv_types.h"

namespace karez {

// Returns a bit for each token whose key is not finite; its numbers in out are 0.
std::uint32_t widen_block_keys(KvType type, int head_dim, const std::byte* slot, float* out);

}  // namespace karez
