#include "attention/archive_page.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>

#include "attention/key_rotation.h"
#include "base/bf16.h"

namespace karez {
namespace {

constexpr std::size_t kMaxDim = 512;
constexpr std::size_t kTokens = kBlockSize;
constexpr std::size_t kWordsOfGroup = 32;
constexpr std::size_t kGroup = 4 * kWordsOfGroup;  // elements whose nibbles share words

// Step of the uniform quantiser of 16 levels with the least error for a Gaussian of variance 1.
constexpr float kStep4 = 0.335F;
constexpr float kMiddle = 7.5F;
constexpr std::uint8_t kSmallestPositive = 8;
// Its reciprocal must be finite.
constexpr float kLeastScale = 2.0F * std::numeric_limits<float>::min();

struct CodedVector {
  std::array<std::uint8_t, kMaxDim> codes;
  std::uint16_t scale;  // bf16
};

// Sixteen sums side by side: the order is fixed, and the compiler may use vectors.
template <class Term>
float sum_of(std::size_t count, const Term& term) {
  constexpr std::size_t kLanes = 16;
  std::array<float, kLanes> sums{};
  for (std::size_t i = 0; i < count; i += kLanes) {
    for (std::size_t j = 0; j < kLanes; ++j) {
      sums[j] += term(i + j);
    }
  }
  for (std::size_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::size_t j = 0; j < half; ++j) {
      sums[j] += sums[j + half];
    }
  }
  return sums[0];
}

bool is_scale(float x) { return std::isfinite(x) && x >= kLeastScale; }

// The nearest level of each coordinate.
void quantise(std::span<const float> x, float scale, std::array<std::int32_t, kMaxDim>& codes) {
  const float inverse = 1.0F / scale;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float at = x[i] * inverse + 8.0F;
    const float low = at > 0.0F ? at : 0.0F;
    codes[i] = static_cast<std::int32_t>(low < 15.0F ? low : 15.0F);
  }
}

// x is rotated in place. A first step by the root mean square gives codes, these the scale with the
// least error; it is rounded before the final codes are chosen.
void code_vector(std::span<float> x, CodedVector& out) {
  rotate_key(x);
  out.codes.fill(kSmallestPositive);
  out.scale = 0;
  const float mean_square =
      sum_of(x.size(), [&x](std::size_t i) { return x[i] * x[i]; }) / static_cast<float>(x.size());
  const float step = kStep4 * std::sqrt(mean_square);
  if (!is_scale(step)) {
    return;
  }
  std::array<std::int32_t, kMaxDim> codes;
  quantise(x, step, codes);
  const auto level = [&codes](std::size_t i) { return static_cast<float>(codes[i]) - kMiddle; };
  const float dot = sum_of(x.size(), [&](std::size_t i) { return x[i] * level(i); });
  const float norm = sum_of(x.size(), [&](std::size_t i) { return level(i) * level(i); });
  const std::uint16_t scale = to_bf16(dot / norm);
  if (!is_scale(from_bf16(scale))) {
    return;
  }
  quantise(x, from_bf16(scale), codes);
  for (std::size_t i = 0; i < x.size(); ++i) {
    out.codes[i] = static_cast<std::uint8_t>(codes[i]);
  }
  out.scale = scale;
}

// elements: one code a word, in the order of the layout.
void pack(std::span<const std::uint16_t> elements, std::byte* codes) {
  for (std::size_t first = 0; first < elements.size(); first += kGroup) {
    std::array<std::uint16_t, kWordsOfGroup> words;
    const std::uint16_t* group = &elements[first];
    for (std::size_t j = 0; j < kWordsOfGroup; ++j) {
      words[j] = static_cast<std::uint16_t>(group[j] | group[kWordsOfGroup + j] << 4 |
                                            group[2 * kWordsOfGroup + j] << 8 |
                                            group[3 * kWordsOfGroup + j] << 12);
    }
    static_assert(std::endian::native == std::endian::little);
    std::memcpy(codes + first / 2, words.data(), sizeof words);
  }
}

// The inverse.
void unpack(const std::byte* codes, std::span<std::uint16_t> elements) {
  for (std::size_t first = 0; first < elements.size(); first += kGroup) {
    std::array<std::uint16_t, kWordsOfGroup> words;
    std::memcpy(words.data(), codes + first / 2, sizeof words);
    std::uint16_t* group = &elements[first];
    for (std::size_t part = 0; part < 4; ++part) {
      for (std::size_t j = 0; j < kWordsOfGroup; ++j) {
        group[part * kWordsOfGroup + j] =
            static_cast<std::uint16_t>(unsigned{words[j]} >> 4 * part & 15U);
      }
    }
  }
}

// Where coordinate i of token t stands among the keys or the values.
struct KeyElement {
  std::size_t operator()(int /*head_dim*/, int t, int i) const {
    return BlockLayout::key_index(KvType::kBf16, t, i);
  }
};
struct ValueElement {
  std::size_t operator()(int head_dim, int t, int i) const {
    return BlockLayout::value_index(KvType::kBf16, head_dim, t, i);
  }
};

template <class ElementOf>
void write_half(int head_dim, std::byte* codes, std::byte* scales, TokenRows rows,
                const ElementOf& element_of) {
  const auto dim = static_cast<std::size_t>(head_dim);
  std::array<std::uint16_t, kTokens * kMaxDim> elements;
  alignas(64) std::array<float, kMaxDim> buffer;
  CodedVector coded;
  for (int t = 0; t < kBlockSize; ++t) {
    std::memcpy(buffer.data(), rows.data + static_cast<std::size_t>(t) * rows.row_stride,
                dim * sizeof(float));
    code_vector(std::span(buffer).first(dim), coded);
    for (int i = 0; i < head_dim; ++i) {
      elements[element_of(head_dim, t, i)] = coded.codes[static_cast<std::size_t>(i)];
    }
    std::memcpy(scales + static_cast<std::size_t>(t) * sizeof coded.scale, &coded.scale,
                sizeof coded.scale);
  }
  pack(std::span(elements).first(kTokens * dim), codes);
}

template <class ElementOf>
void decode_half(int head_dim, const std::byte* codes, const std::byte* scales, float* out,
                 const ElementOf& element_of) {
  std::array<std::uint16_t, kTokens * kMaxDim> elements;
  unpack(codes, std::span(elements).first(kTokens * static_cast<std::size_t>(head_dim)));
  for (int t = 0; t < kBlockSize; ++t) {
    std::uint16_t scale;
    std::memcpy(&scale, scales + static_cast<std::size_t>(t) * sizeof scale, sizeof scale);
    float* row = out + t * head_dim;
    const float step = from_bf16(scale);
    for (int i = 0; i < head_dim; ++i) {
      row[i] = (static_cast<float>(elements[element_of(head_dim, t, i)]) - kMiddle) * step;
    }
    rotate_key_back({row, static_cast<std::size_t>(head_dim)});
  }
}

}  // namespace

void write_archive_page(int head_dim, std::byte* page, TokenRows keys, TokenRows values) {
  const ArchiveLayout layout = ArchiveLayout::of(head_dim);
  write_half(head_dim, page + layout.keys_offset, page + layout.key_scales_offset, keys,
             KeyElement());
  write_half(head_dim, page + layout.values_offset, page + layout.value_scales_offset, values,
             ValueElement());
}

void decode_archive_page(int head_dim, const std::byte* page, float* keys, float* values) {
  const ArchiveLayout layout = ArchiveLayout::of(head_dim);
  if (keys != nullptr) {
    decode_half(head_dim, page + layout.keys_offset, page + layout.key_scales_offset, keys,
                KeyElement());
  }
  if (values != nullptr) {
    decode_half(head_dim, page + layout.values_offset, page + layout.value_scales_offset, values,
                ValueElement());
  }
}

void archive_block(KvType type, int head_dim, const std::byte* slot, std::byte* page) {
  alignas(64) std::array<float, kTokens * kMaxDim> keys;
  alignas(64) std::array<float, kTokens * kMaxDim> values;
  load_block_keys(type, head_dim, slot, keys.data());
  load_block_values(type, head_dim, slot, values.data());
  const auto stride = static_cast<std::size_t>(head_dim);
  write_archive_page(head_dim, page, {keys.data(), stride}, {values.data(), stride});
}

void restore_block(KvType type, int head_dim, const std::byte* page, std::byte* slot) {
  alignas(64) std::array<float, kTokens * kMaxDim> keys;
  alignas(64) std::array<float, kTokens * kMaxDim> values;
  decode_archive_page(head_dim, page, keys.data(), values.data());
  const auto stride = static_cast<std::size_t>(head_dim);
  store_in_block(type, head_dim, slot, 0, kBlockSize, {keys.data(), stride},
                 {values.data(), stride});
}

void index_archive_page(const KeyIndexView& index, int kv_head, BlockId block, int page,
                        int head_dim, const std::byte* page_bytes) {
  alignas(64) std::array<float, kTokens * kMaxDim> keys;
  decode_archive_page(head_dim, page_bytes, keys.data(), nullptr);
  index_whole_block(index.kind(), head_dim, index.page_record(kv_head, block, page),
                    index.has_coarse() ? index.coarse_page_record(kv_head, block, page) : nullptr,
                    keys.data(), index.centre(kv_head, head_dim));
}

}  // namespace karez
