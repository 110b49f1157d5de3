// Writing records of the key index. Plain C++ for all processors, so that stored bits never depend
// on the CPU level.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "attention/key_index.h"
#include "attention/key_rotation.h"
#include "base/bf16.h"
#include "base/check.h"

namespace karez {
namespace {

constexpr std::size_t kMaxDim = 512;
constexpr std::size_t kGroup = 16;  // coordinates in a line of codes

struct alignas(64) KeyBuffer : std::array<float, std::size_t{kBlockSize} * kMaxDim> {};

// Steps of the uniform quantiser with the least error for a Gaussian of variance 1.
constexpr float kStep2 = 0.9957F;
constexpr float kStep3 = 0.586F;

// Sixteen sums side by side: the order is fixed, and the compiler may use vectors.
template <class Term>
float sum_of(std::size_t count, const Term& term) {
  std::array<float, kGroup> sums{};
  for (std::size_t i = 0; i < count; i += kGroup) {
    for (std::size_t j = 0; j < kGroup; ++j) {
      sums[j] += term(i + j);
    }
  }
  for (std::size_t half = kGroup / 2; half > 0; half /= 2) {
    for (std::size_t j = 0; j < half; ++j) {
      sums[j] += sums[j + half];
    }
  }
  return sums[0];
}

struct CodedToken {
  std::array<std::uint8_t, kMaxDim> codes;
  float scale = 0.0F;
};

// The code is the number of borders, half_levels on each side of 0 and 0 itself, that x reaches.
template <std::size_t half_levels>
void code_token(std::span<const float> x, float step, CodedToken& out) {
  alignas(64) std::array<std::int32_t, kMaxDim> codes;
  std::array<float, 2 * half_levels - 1> borders;
  for (std::size_t b = 0; b < borders.size(); ++b) {
    borders[b] = step * (static_cast<float>(b + 1) - static_cast<float>(half_levels));
  }
  for (std::size_t i = 0; i < x.size(); ++i) {
    std::int32_t code = 0;
    for (const float border : borders) {
      code += x[i] >= border ? 1 : 0;
    }
    codes[i] = code;
  }
  constexpr float kOffset = static_cast<float>(half_levels) - 0.5F;
  const auto level = [&codes](std::size_t i) { return static_cast<float>(codes[i]) - kOffset; };
  const float dot = sum_of(x.size(), [&](std::size_t i) { return x[i] * level(i); });
  const float norm = sum_of(x.size(), [&](std::size_t i) { return level(i) * level(i); });
  out.scale = dot / norm;
  for (std::size_t i = 0; i < x.size(); ++i) {
    out.codes[i] = static_cast<std::uint8_t>(codes[i]);
  }
}

std::uint32_t four_codes(const std::uint8_t* codes) {
  std::uint32_t word;
  std::memcpy(&word, codes, sizeof word);
  return word;
}

void put_word(std::byte* line, std::size_t token, std::uint32_t word) {
  std::memcpy(line + token * sizeof word, &word, sizeof word);
}

// Four coordinates in each byte: coordinate 4 s + j of the group at bits 2 s of byte j.
std::uint32_t low_word(const CodedToken& coded, std::size_t group) {
  constexpr std::uint32_t kLowBits = 0x03030303U;
  std::uint32_t low = 0;
  for (std::size_t s = 0; s < 4; ++s) {
    low |= (four_codes(&coded.codes[group * kGroup + 4 * s]) & kLowBits) << (2 * s);
  }
  return low;
}

void write_token(KeyIndexKind kind, const KeyIndexLayout& layout, std::size_t dim,
                 std::byte* record, std::size_t token, const CodedToken& coded) {
  constexpr std::size_t kLineBytes = kBlockSize * sizeof(std::uint32_t);
  constexpr std::uint32_t kOneBit = 0x01010101U;
  std::uint32_t high = 0;
  for (std::size_t g = 0; g < dim / kGroup; ++g) {
    put_word(record + g * kLineBytes, token, low_word(coded, g));
    if (kind != KeyIndexKind::kR3) {
      continue;
    }
    for (std::size_t s = 0; s < 4; ++s) {
      const std::uint32_t codes = four_codes(&coded.codes[g * kGroup + 4 * s]);
      high |= (codes >> 2 & kOneBit) << (4 * (g % 2) + s);
    }
    if (g % 2 == 1 || (g + 1) * kGroup == dim) {
      put_word(record + layout.high_bits_offset + g / 2 * kLineBytes, token, high);
      high = 0;
    }
  }
  const std::uint16_t scale = to_bf16(coded.scale);
  std::memcpy(record + layout.scales_offset + token * sizeof scale, &scale, sizeof scale);
}

// x: the key or a mean of keys, centred; it is rotated in place.
void code_key(KeyIndexKind kind, std::span<float> x, CodedToken& out) {
  rotate_key(x);
  const float mean_square =
      sum_of(x.size(), [&x](std::size_t j) { return x[j] * x[j]; }) / static_cast<float>(x.size());
  const float rms = std::sqrt(mean_square);
  if (kind == KeyIndexKind::kR3) {
    code_token<4>(x, kStep3 * rms, out);
  } else {
    code_token<2>(x, kStep2 * rms, out);
  }
  if (!std::isfinite(out.scale)) {
    out.scale = 0.0F;
  }
}

// Keys: f32 [16][head_dim], here and below.
void code_mean(int head_dim, std::byte* coarse_record, const float* keys, const float* centre) {
  const auto dim = static_cast<std::size_t>(head_dim);
  alignas(64) std::array<float, kMaxDim> buffer;
  const std::span<float> x(buffer.data(), dim);
  for (std::size_t i = 0; i < dim; ++i) {
    float sum = 0.0F;
    for (std::size_t t = 0; t < std::size_t{kBlockSize}; ++t) {
      sum += keys[t * dim + i];
    }
    x[i] = sum / static_cast<float>(kBlockSize) - (centre == nullptr ? 0.0F : centre[i]);
  }
  CodedToken coded;
  code_key(KeyIndexKind::kR2, x, coded);
  for (std::size_t g = 0; g < dim / kGroup; ++g) {
    put_word(coarse_record, g, low_word(coded, g));
  }
  const std::uint16_t scale = to_bf16(coded.scale);
  std::memcpy(coarse_record + dim / kGroup * sizeof(std::uint32_t), &scale, sizeof scale);
}

void summarise_keys(KeyIndexKind kind, int head_dim, std::byte* record, const float* keys) {
  auto* out = reinterpret_cast<std::uint16_t*>(record);
  for (int i = 0; i < head_dim; ++i) {
    float least = keys[i];
    float largest = least;
    float sum = least;
    for (int t = 1; t < kBlockSize; ++t) {
      const float key = keys[t * head_dim + i];
      least = std::min(least, key);
      largest = std::max(largest, key);
      sum += key;
    }
    const auto finite = [](float x) { return std::isfinite(x) ? x : 0.0F; };
    if (kind == KeyIndexKind::kMinMax) {
      out[i] = to_bf16(finite(least));
      out[head_dim + i] = to_bf16(finite(largest));
    } else {
      out[i] = to_bf16(finite(sum / static_cast<float>(kBlockSize)));
    }
  }
}

}  // namespace

void index_tokens(KeyIndexKind kind, int head_dim, std::byte* record, int first_token,
                  int num_tokens, TokenRows keys, const float* centre) {
  KAREZ_DCHECK(codes_tokens(kind), "this kind of index summarises blocks");
  const auto dim = static_cast<std::size_t>(head_dim);
  const KeyIndexLayout layout = KeyIndexLayout::of(kind, head_dim);
  alignas(64) std::array<float, kMaxDim> buffer;
  const std::span<float> x(buffer.data(), dim);
  CodedToken coded;
  for (int i = 0; i < num_tokens; ++i) {
    const float* key = keys.data + static_cast<std::size_t>(i) * keys.row_stride;
    if (centre == nullptr) {
      std::copy_n(key, dim, x.data());
    } else {
      for (std::size_t j = 0; j < dim; ++j) {
        x[j] = key[j] - centre[j];
      }
    }
    code_key(kind, x, coded);
    write_token(kind, layout, dim, record, static_cast<std::size_t>(first_token + i), coded);
  }
}

void index_stored_tokens(KeyIndexKind kind, int head_dim, std::byte* record, int first_token,
                         int num_tokens, KvType type, const std::byte* slot, const float* centre) {
  KeyBuffer keys;
  load_token_keys(type, head_dim, slot, first_token, num_tokens, keys.data());
  index_tokens(kind, head_dim, record, first_token, num_tokens,
               {keys.data(), static_cast<std::size_t>(head_dim)}, centre);
}

void index_mean(int head_dim, std::byte* coarse_record, KvType type, const std::byte* slot,
                const float* centre) {
  KeyBuffer keys;
  load_block_keys(type, head_dim, slot, keys.data());
  code_mean(head_dim, coarse_record, keys.data(), centre);
}

void index_block(KeyIndexKind kind, int head_dim, std::byte* record, KvType type,
                 const std::byte* slot) {
  KAREZ_DCHECK(!codes_tokens(kind), "this kind of index codes tokens");
  KeyBuffer keys;
  load_block_keys(type, head_dim, slot, keys.data());
  summarise_keys(kind, head_dim, record, keys.data());
}

void index_whole_block(KeyIndexKind kind, int head_dim, std::byte* record, std::byte* coarse_record,
                       const float* keys, const float* centre) {
  if (!codes_tokens(kind)) {
    return summarise_keys(kind, head_dim, record, keys);
  }
  index_tokens(kind, head_dim, record, 0, kBlockSize, {keys, static_cast<std::size_t>(head_dim)},
               centre);
  if (coarse_record != nullptr) {
    code_mean(head_dim, coarse_record, keys, centre);
  }
}

void index_stored_block(const KeyIndexView& index, int kv_head, BlockId block, int head_dim,
                        KvType type, const std::byte* slot) {
  KeyBuffer keys;
  load_block_keys(type, head_dim, slot, keys.data());
  index_whole_block(index.kind(), head_dim, index.record(kv_head, block),
                    index.has_coarse() ? index.coarse_record(kv_head, block) : nullptr, keys.data(),
                    index.centre(kv_head, head_dim));
}

}  // namespace karez
