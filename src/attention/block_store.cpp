#include "attention/block_store.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/bf16.h"
#include "kv/block_layout.h"

namespace karez {
namespace {

struct Bf16Codec {
  using Element = std::uint16_t;
  static constexpr KvType kType = KvType::kBf16;
  explicit Bf16Codec(const float*, int) {}
  Element encode(float x) const { return to_bf16(x); }
};

struct F32Codec {
  using Element = float;
  static constexpr KvType kType = KvType::kF32;
  explicit F32Codec(const float*, int) {}
  Element encode(float x) const { return x; }
};

struct Q8Codec {
  using Element = std::int8_t;
  static constexpr KvType kType = KvType::kQ8_0;
  explicit Q8Codec(const float* x, int count) {
    float largest = 0.0F;
    for (int i = 0; i < count; ++i) {
      largest = std::max(largest, std::fabs(x[i]));
    }
    scale = largest / 127.0F;
    inverse = scale > 0.0F ? 1.0F / scale : 0.0F;
  }
  Element encode(float x) const {
    const float q = std::nearbyintf(x * inverse);
    // NaN fails both comparisons and becomes 0: a cast of it would be undefined.
    return q >= -127.0F ? static_cast<Element>(q <= 127.0F ? q : 127.0F) : Element{-127};
  }
  float scale = 0.0F;
  float inverse = 0.0F;
};

template <class Codec>
void store_tokens(int head_dim, std::byte* slot, int first_token, int num_tokens, TokenRows keys,
                  TokenRows values) {
  using Element = typename Codec::Element;
  const BlockLayout layout = BlockLayout::of(Codec::kType, head_dim);
  auto* key_block = reinterpret_cast<Element*>(slot + layout.keys_offset);
  auto* value_block = reinterpret_cast<Element*>(slot + layout.values_offset);
  for (int i = 0; i < num_tokens; ++i) {
    const int t = first_token + i;
    const float* key = keys.data + static_cast<std::size_t>(i) * keys.row_stride;
    const float* value = values.data + static_cast<std::size_t>(i) * values.row_stride;
    const Codec key_codec(key, head_dim);
    const Codec value_codec(value, head_dim);
    for (int j = 0; j < head_dim; ++j) {
      key_block[BlockLayout::key_index(Codec::kType, t, j)] = key_codec.encode(key[j]);
      value_block[BlockLayout::value_index(Codec::kType, head_dim, t, j)] =
          value_codec.encode(value[j]);
    }
    if constexpr (Codec::kType == KvType::kQ8_0) {
      reinterpret_cast<float*>(slot + layout.key_scales_offset)[t] = key_codec.scale;
      reinterpret_cast<float*>(slot + layout.value_scales_offset)[t] = value_codec.scale;
    }
  }
  if (first_token == 0) {
    for (int t = num_tokens; t < kBlockSize; ++t) {
      for (int j = 0; j < head_dim; ++j) {
        value_block[BlockLayout::value_index(Codec::kType, head_dim, t, j)] = Element{};
      }
    }
  }
}

}  // namespace

void store_in_block(KvType type, int head_dim, std::byte* slot, int first_token, int num_tokens,
                    TokenRows keys, TokenRows values) {
  switch (type) {
    case KvType::kF32:
      return store_tokens<F32Codec>(head_dim, slot, first_token, num_tokens, keys, values);
    case KvType::kBf16:
      return store_tokens<Bf16Codec>(head_dim, slot, first_token, num_tokens, keys, values);
    case KvType::kQ8_0:
      return store_tokens<Q8Codec>(head_dim, slot, first_token, num_tokens, keys, values);
  }
}

void load_block_keys(KvType type, int head_dim, const std::byte* slot, float* out) {
  const BlockLayout layout = BlockLayout::of(type, head_dim);
  const std::byte* keys = slot + layout.keys_offset;
  const auto* scales = reinterpret_cast<const float*>(slot + layout.key_scales_offset);
  for (int t = 0; t < kBlockSize; ++t) {
    for (int i = 0; i < head_dim; ++i) {
      const std::size_t from = BlockLayout::key_index(type, t, i);
      switch (type) {
        case KvType::kF32:
          *out = reinterpret_cast<const float*>(keys)[from];
          break;
        case KvType::kBf16:
          *out = std::bit_cast<float>(
              std::uint32_t{reinterpret_cast<const std::uint16_t*>(keys)[from]} << 16);
          break;
        case KvType::kQ8_0:
          *out = static_cast<float>(reinterpret_cast<const std::int8_t*>(keys)[from]) * scales[t];
          break;
      }
      ++out;
    }
  }
}

}  // namespace karez
