#include "compress/pair_pack.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <vector>

#include "attention/block_store.h"
#include "base/check.h"
#include "kv/block_layout.h"

namespace karez {
namespace {

// The 16 pairs that become one block: where each lies.
struct Source {
  const std::byte* slot[kBlockSize];
  int token[kBlockSize];
};

Source source_of(std::span<const std::byte* const> from, const std::int32_t* pairs) {
  Source source{};
  for (int t = 0; t < kBlockSize; ++t) {
    source.slot[t] = from[static_cast<std::size_t>(pairs[t] / kBlockSize)];
    source.token[t] = pairs[t] % kBlockSize;
  }
  return source;
}

// Keys as words that hold all that one line has of a token: [num_lines][16].
template <class Word>
void pack_keys(const Source& source, std::size_t offset, int num_lines, std::byte* to) {
  const Word* words[kBlockSize];
  for (int t = 0; t < kBlockSize; ++t) {
    words[t] = reinterpret_cast<const Word*>(source.slot[t] + offset) + source.token[t];
  }
  Word* out = reinterpret_cast<Word*>(to + offset);
  for (int line = 0; line < num_lines; ++line) {
    for (int t = 0; t < kBlockSize; ++t) {
      out[t] = words[t][line * kBlockSize];
    }
    out += kBlockSize;
  }
}

// Values of two tokens in turn, a word for both: [8][head_dim].
template <class Word>
void pack_value_pairs(const Source& source, std::size_t offset, int head_dim, std::byte* to) {
  constexpr unsigned kHalfBits = sizeof(Word) * CHAR_BIT / 2;
  constexpr unsigned kLowHalf = (1U << kHalfBits) - 1;
  Word* out = reinterpret_cast<Word*>(to + offset);
  for (int t = 0; t < kBlockSize; t += 2) {
    const auto row_of = [&](int i) {
      return reinterpret_cast<const Word*>(source.slot[i] + offset) +
             source.token[i] / 2 * head_dim;
    };
    const auto shift_of = [&](int i) { return source.token[i] % 2 == 0 ? 0U : kHalfBits; };
    const Word* even = row_of(t);
    const Word* odd = row_of(t + 1);
    const unsigned even_shift = shift_of(t);
    const unsigned odd_shift = shift_of(t + 1);
    for (int i = 0; i < head_dim; ++i) {
      const unsigned low = even[i] >> even_shift & kLowHalf;
      const unsigned high = odd[i] >> odd_shift & kLowHalf;
      out[i] = static_cast<Word>(low | high << kHalfBits);
    }
    out += head_dim;
  }
}

void pack_value_rows(const Source& source, std::size_t offset, int head_dim, std::byte* to) {
  const std::size_t row_bytes = static_cast<std::size_t>(head_dim) * sizeof(float);
  for (int t = 0; t < kBlockSize; ++t) {
    std::memcpy(to + offset + static_cast<std::size_t>(t) * row_bytes,
                source.slot[t] + offset + static_cast<std::size_t>(source.token[t]) * row_bytes,
                row_bytes);
  }
}

void pack_scales(const Source& source, std::size_t offset, std::byte* to) {
  for (int t = 0; t < kBlockSize; ++t) {
    reinterpret_cast<float*>(to + offset)[t] =
        reinterpret_cast<const float*>(source.slot[t] + offset)[source.token[t]];
  }
}

void pack_block(KvType type, int head_dim, const Source& source, std::byte* to) {
  const BlockLayout layout = BlockLayout::of(type, head_dim);
  switch (type) {
    case KvType::kF32:
      pack_keys<std::uint32_t>(source, layout.keys_offset, head_dim, to);
      pack_value_rows(source, layout.values_offset, head_dim, to);
      break;
    case KvType::kBf16:
      pack_keys<std::uint32_t>(source, layout.keys_offset, head_dim / 2, to);
      pack_value_pairs<std::uint32_t>(source, layout.values_offset, head_dim, to);
      break;
    case KvType::kQ8_0:
      pack_keys<std::uint16_t>(source, layout.keys_offset, head_dim / 2, to);
      pack_value_pairs<std::uint16_t>(source, layout.values_offset, head_dim, to);
      pack_scales(source, layout.key_scales_offset, to);
      pack_scales(source, layout.value_scales_offset, to);
      break;
  }
}

void check_pairs(std::span<const std::byte* const> from, std::span<const std::int32_t> pairs) {
  const auto count = static_cast<std::int32_t>(from.size()) * kBlockSize;
  KAREZ_CHECK(std::ranges::all_of(pairs, [count](std::int32_t i) { return i >= 0 && i < count; }),
              "pairs of the blocks that are given");
}

}  // namespace

void pack_pairs(KvType type, int head_dim, std::span<const std::byte* const> from,
                std::span<const std::int32_t> pairs, std::span<std::byte* const> to) {
  KAREZ_CHECK(pairs.size() == to.size() * kBlockSize, "whole blocks of pairs");
  check_pairs(from, pairs);
  for (std::size_t b = 0; b < to.size(); ++b) {
    pack_block(type, head_dim, source_of(from, pairs.data() + b * kBlockSize), to[b]);
  }
}

void load_pairs(KvType type, int head_dim, std::span<const std::byte* const> from,
                std::span<const std::int32_t> pairs, float* keys, float* values) {
  check_pairs(from, pairs);
  const auto row = static_cast<std::size_t>(head_dim);
  std::vector<float> block(2 * kBlockSize * row);
  float* block_keys = block.data();
  float* block_values = block.data() + kBlockSize * row;
  std::size_t loaded = from.size();
  for (const std::int32_t pair : pairs) {
    const auto index = static_cast<std::size_t>(pair / kBlockSize);
    if (index != loaded) {
      load_block_keys(type, head_dim, from[index], block_keys);
      load_block_values(type, head_dim, from[index], block_values);
      loaded = index;
    }
    const std::size_t token = static_cast<std::size_t>(pair % kBlockSize) * row;
    keys = std::copy_n(block_keys + token, row, keys);
    values = std::copy_n(block_values + token, row, values);
  }
}

}  // namespace karez
