// Moving stored pairs (a key and its value of one layer and KV head) between blocks.
//
// Blocks are slots as kv/block_layout.h says; pair i of a row of blocks is token i % 16 of block
// i / 16. Bits are copied: a pair that has moved is attended to exactly as before.
// Thread: pure functions of the memory that they are given. Owns: nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kv/kv_types.h"

namespace karez {

// Pair pairs[i] of `from` becomes pair i of `to`.
// Requires: to fills whole blocks (16 pairs for each), and no slot of it is one of from's.
void pack_pairs(KvType type, int head_dim, std::span<const std::byte* const> from,
                std::span<const std::int32_t> pairs, std::span<std::byte* const> to);

// Keys and values of pairs[i] as f32, [pairs.size()][head_dim] each.
void load_pairs(KvType type, int head_dim, std::span<const std::byte* const> from,
                std::span<const std::int32_t> pairs, float* keys, float* values);

}  // namespace karez
