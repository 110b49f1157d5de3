// Writing keys and values of consecutive tokens into one slot, in the layout of kv/block_layout.h,
// and reading them back.
//
// The same plain C++ for all processors, so that stored bits never depend on the CPU level.
// Thread: calls on different slots are independent.
#pragma once

#include <cstddef>

#include "kv/kv_types.h"

namespace karez {

// f32 rows of one KV head: token i of the run is at data + i * row_stride, [head_dim].
struct TokenRows {
  const float* data = nullptr;
  std::size_t row_stride = 0;
};

// Writes tokens [first_token, first_token + num_tokens) of the block. A run that starts a block
// also clears the values behind it: attention multiplies them by weight 0, which would not hide
// infinities that an earlier owner of the slot may have left.
// q8_0: each token's keys and values get their own scale, largest magnitude / 127.
void store_in_block(KvType type, int head_dim, std::byte* slot, int first_token, int num_tokens,
                    TokenRows keys, TokenRows values);

// The keys of a slot, f32 [16][head_dim]. Those that were never written are whatever is there.
void load_block_keys(KvType type, int head_dim, const std::byte* slot, float* out);
// Those of tokens [first_token, first_token + num_tokens): f32 [num_tokens][head_dim].
void load_token_keys(KvType type, int head_dim, const std::byte* slot, int first_token,
                     int num_tokens, float* out);

// Likewise the values.
void load_block_values(KvType type, int head_dim, const std::byte* slot, float* out);

}  // namespace karez
