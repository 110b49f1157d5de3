// The vocabulary of the KV system: ids, the block size, the stored types.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/status.h"
#include "base/strong_id.h"

namespace karez {

// Tokens in a block. Fixed: kernels, layouts and hashes are built on it.
inline constexpr int kBlockSize = 16;

// Room for one block (16 tokens of one KV head of one layer) in the fast tier: an index into
// BlockPool.
using SlotId = StrongId<struct SlotIdTag>;
// A logical block: the same 16 tokens in all layers and heads of one layer group. The unit of
// sharing and reference counting. Its place in memory is a slot for each (layer, head).
using BlockId = StrongId<struct BlockIdTag>;
// One running sequence as the KV system knows it: a block table with a length.
using SequenceId = StrongId<struct SequenceIdTag>;

// How keys and values are stored. Names are llama.cpp's (--cache-type-k).
enum class KvType {
  kF32,
  kBf16,
  kQ8_0,  // 8 bits with one f32 scale a token and head, for keys and for values
};

std::string_view to_string(KvType type);
// Fails: kInvalidArgument with the list of types.
Expected<KvType> parse_kv_type(std::string_view name);

}  // namespace karez
