#include "compress/window_keys.h"

#include <algorithm>
#include <bit>

#include "kv/block_layout.h"

namespace karez {
namespace {

void widen_bf16(int head_dim, const std::uint32_t* pairs, float* out) {
  for (int i = 0; i < head_dim; i += 2) {
    for (int t = 0; t < kBlockSize; ++t) {
      out[t] = std::bit_cast<float>(pairs[t] << 16);
      out[kBlockSize + t] = std::bit_cast<float>(pairs[t] & 0xffff0000U);
    }
    pairs += kBlockSize;
    out += 2 * kBlockSize;
  }
}

void widen_q8(int head_dim, const std::int8_t* pairs, const float* scales, float* out) {
  for (int i = 0; i < head_dim; i += 2) {
    for (int t = 0; t < kBlockSize; ++t) {
      out[t] = static_cast<float>(pairs[2 * t]) * scales[t];
      out[kBlockSize + t] = static_cast<float>(pairs[2 * t + 1]) * scales[t];
    }
    pairs += 2 * kBlockSize;
    out += 2 * kBlockSize;
  }
}

}  // namespace

std::uint32_t widen_block_keys(KvType type, int head_dim, const std::byte* slot, float* out) {
  const BlockLayout layout = BlockLayout::of(type, head_dim);
  const std::byte* keys = slot + layout.keys_offset;
  switch (type) {
    case KvType::kF32:
      std::copy_n(reinterpret_cast<const float*>(keys), head_dim * kBlockSize, out);
      break;
    case KvType::kBf16:
      widen_bf16(head_dim, reinterpret_cast<const std::uint32_t*>(keys), out);
      break;
    case KvType::kQ8_0:
      widen_q8(head_dim, reinterpret_cast<const std::int8_t*>(keys),
               reinterpret_cast<const float*>(slot + layout.key_scales_offset), out);
      break;
  }
  float zeros[kBlockSize] = {};  // x * 0 is NaN for what is not finite
  for (int i = 0; i < head_dim; ++i) {
    for (int t = 0; t < kBlockSize; ++t) {
      zeros[t] += out[i * kBlockSize + t] * 0.0F;
    }
  }
  std::uint32_t not_finite = 0;
  for (int t = 0; t < kBlockSize; ++t) {
    if (zeros[t] != 0.0F) {
      not_finite |= std::uint32_t{1} << t;
      for (int i = 0; i < head_dim; ++i) {
        out[i * kBlockSize + t] = 0.0F;
      }
    }
  }
  return not_finite;
}

}  // namespace karez
