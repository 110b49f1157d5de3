#include "attention/block_store.h"

#include <algorithm>
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
    if (!(q >= -127.0F)) {
      return q < -127.0F ? Element{-127} : Element{0};  // NaN: a cast of it would be undefined
    }
    return static_cast<Element>(std::min(q, 127.0F));
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

// Calls body.template operator()<type>(decode); decode(t, index): element `index` of the keys or
// values at `elements`, which belongs to token t.
template <class Body>
void with_decoder(KvType type, const std::byte* elements, const std::byte* scales,
                  const Body& body) {
  switch (type) {
    case KvType::kF32:
      return body.template operator()<KvType::kF32>(
          [from = reinterpret_cast<const float*>(elements)](int, std::size_t index) {
            return from[index];
          });
    case KvType::kBf16:
      return body.template operator()<KvType::kBf16>(
          [from = reinterpret_cast<const std::uint16_t*>(elements)](int, std::size_t index) {
            return from_bf16(from[index]);
          });
    case KvType::kQ8_0:
      return body.template operator()<KvType::kQ8_0>(
          [from = reinterpret_cast<const std::int8_t*>(elements),
           scale = reinterpret_cast<const float*>(scales)](int t, std::size_t index) {
            return static_cast<float>(from[index]) * scale[t];
          });
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
  load_token_keys(type, head_dim, slot, 0, kBlockSize, out);
}

void load_token_keys(KvType type, int head_dim, const std::byte* slot, int first_token,
                     int num_tokens, float* out) {
  const BlockLayout layout = BlockLayout::of(type, head_dim);
  with_decoder(type, slot + layout.keys_offset, slot + layout.key_scales_offset,
               [&]<KvType stored>(const auto& decode) {
                 for (int t = 0; t < num_tokens; ++t) {
                   for (int i = 0; i < head_dim; ++i) {
                     out[t * head_dim + i] = decode(
                         first_token + t, BlockLayout::key_index(stored, first_token + t, i));
                   }
                 }
               });
}

void load_block_values(KvType type, int head_dim, const std::byte* slot, float* out) {
  const BlockLayout layout = BlockLayout::of(type, head_dim);
  with_decoder(type, slot + layout.values_offset, slot + layout.value_scales_offset,
               [head_dim, out]<KvType stored>(const auto& decode) {
                 for (int t = 0; t < kBlockSize; ++t) {
                   for (int i = 0; i < head_dim; ++i) {
                     out[t * head_dim + i] =
                         decode(t, BlockLayout::value_index(stored, head_dim, t, i));
                   }
                 }
               });
}

}  // namespace karez
