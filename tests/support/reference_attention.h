// Attention as the textbook has it: one row and one head at a time, position by position, in f64.
//
// What the paged kernels are tested against. Knows nothing of blocks, tables or vectors.
// Thread: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace karez::test {

struct ReferenceShape {
  int num_heads = 1;
  int num_kv_heads = 1;
  int head_dim = 16;
  int window = 0;  // 0: all
  double scale = 1.0;
  double softcap = 0.0;  // 0: off
};

// One sequence, f32 [num_tokens][num_kv_heads][head_dim] each.
struct ReferenceTokens {
  std::vector<float> keys;
  std::vector<float> values;
};

// query: [num_heads][head_dim] of the row at `position`. Returns [num_heads][head_dim].
// blocks: [num_kv_heads], the blocks of 16 tokens that each KV head reads; empty: all.
std::vector<float> reference_attention(const ReferenceShape& shape, const ReferenceTokens& tokens,
                                       std::span<const float> query, int position,
                                       std::span<const std::span<const std::int32_t>> blocks = {});

// What a number is after a round trip through bf16 (to nearest, ties to even).
float through_bf16(float x);
// What `head` (one token, one head) is after a round trip through 8 bits with one scale.
std::vector<float> through_q8_0(std::span<const float> head);

}  // namespace karez::test
