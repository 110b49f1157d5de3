// Where a number lies inside a slot. The one place that the store and the kernels read it from.
//
// A slot holds keys, then values (then scales) of 16 tokens of one head, d = head_dim:
//
//   f32    keys f32 [d][16]          values f32 [16][d]
//   bf16   keys bf16 [d/2][16][2]    values bf16 [8][d][2]
//   q8_0   keys i8 [d/2][16][2]      values i8 [8][d][2]      key scales f32 [16], value scales f32
//   [16]
//
// Keys lie with the token innermost, so that one vector load is 16 tokens; pairs of coordinates
// (keys) and pairs of tokens (values) are neighbours, because vdpbf16ps and AMX multiply pairs.
// bf16 keys are AMX B tiles as they stand: 16 rows of 64 bytes for 32 coordinates.
#pragma once

#include <cstddef>

#include "kv/kv_types.h"

namespace karez {

struct BlockLayout {
  std::size_t keys_offset;
  std::size_t values_offset;
  std::size_t key_scales_offset;    // q8_0 only
  std::size_t value_scales_offset;  // q8_0 only
  std::size_t slot_bytes;           // multiple of 64

  static constexpr BlockLayout of(KvType type, int head_dim);

  // Element index (not byte) of coordinate i of token t within the keys or the values.
  static constexpr std::size_t key_index(KvType type, int t, int i);
  static constexpr std::size_t value_index(KvType type, int head_dim, int t, int i);
};

constexpr std::size_t kv_element_bytes(KvType type) {
  switch (type) {
    case KvType::kF32:
      return 4;
    case KvType::kBf16:
      return 2;
    case KvType::kQ8_0:
      return 1;
  }
  return 0;
}

constexpr BlockLayout BlockLayout::of(KvType type, int head_dim) {
  const std::size_t half = static_cast<std::size_t>(kBlockSize) *
                           static_cast<std::size_t>(head_dim) * kv_element_bytes(type);
  const std::size_t scales = type == KvType::kQ8_0 ? kBlockSize * sizeof(float) : 0;
  const std::size_t bytes = 2 * half + 2 * scales;
  return BlockLayout{0, half, 2 * half, 2 * half + scales, (bytes + 63) / 64 * 64};
}

constexpr std::size_t BlockLayout::key_index(KvType type, int t, int i) {
  if (type == KvType::kF32) {
    return static_cast<std::size_t>(i * kBlockSize + t);
  }
  return static_cast<std::size_t>((i / 2 * kBlockSize + t) * 2 + i % 2);
}

constexpr std::size_t BlockLayout::value_index(KvType type, int head_dim, int t, int i) {
  if (type == KvType::kF32) {
    return static_cast<std::size_t>(t * head_dim + i);
  }
  return static_cast<std::size_t>((t / 2 * head_dim + i) * 2 + t % 2);
}

}  // namespace karez
