// The attention kernels, written once over a vector wrapper `Simd` (simd_*.h).
//
// Included by one kernels_*.cpp each. Everything is in an unnamed namespace and calls no library
// function, because each includer is compiled for another processor.
//
// Lanes are tokens (scores) or coordinates (values), never parts of one sum across rows: a row's
// bits do not depend on which other rows share its tile. Sums run in ascending order of
// coordinates, tokens and chunks. Tokens that a row does not see get weight +0, which leaves sums
// as they are.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/kernel_common.h"
#include "attention/kernel_table.h"
#include "attention/score_kernels.h"
#include "attention/value_kernels.h"
#include "attention/weight_kernels.h"

namespace karez {
namespace {

template <class Simd, class Dot>
void load_queries(const QueryTile& tile, const float* queries, std::size_t row_stride) {
  for (int v = 0; v < tile.num_vectors; ++v) {
    const float* in = queries + static_cast<std::size_t>(v / tile.group) * row_stride +
                      static_cast<std::size_t>(v % tile.group * tile.head_dim);
    std::byte* out =
        tile.queries + static_cast<std::size_t>(v * tile.head_dim) * Dot::kElementBytes;
    for (int i = 0; i < tile.head_dim; i += kLanes) {
      Dot::store(out + static_cast<std::size_t>(i) * Dot::kElementBytes, Simd::load(in + i));
    }
  }
}

template <class Simd, class Dot>
void attend_chunk(const QueryTile& tile, const ChunkBlocks& chunk, const Partial& result) {
  chunk_scores<Simd, Dot>(tile, chunk, chunk.keys, nullptr);
  for (int v = 0; v < tile.num_vectors; ++v) {
    chunk_weights<Simd, Dot>(tile, chunk, nullptr, v, result);
  }
  chunk_values<Simd, Dot>(tile, chunk, chunk.values, result);
}

// q8_0 and r4: integers up to 127 and half integers up to 7.5 are exact in bf16, so a chunk is
// widened first; scales go into the scores and into the weights.
template <class Simd>
struct Q8Widen {
  static constexpr bool kFetches = false;
  static void widen(const std::byte* from, std::uint16_t* to, std::size_t count) {
    Simd::widen_to_bf16(reinterpret_cast<const std::int8_t*>(from), to, count);
  }
};
template <class Simd>
struct R4Widen {
  static constexpr bool kFetches = true;
  static void widen(const std::byte* from, std::uint16_t* to, std::size_t count) {
    Simd::widen_codes(from, to, count);
  }
};

// What is needed next of archived pages: codes, and of pages to come the line of scales behind keys
// and values.
struct NextCodes {
  const std::byte* const* codes;
  bool has_scales;
};

// to: where each widened block begins. Of pages what comes next is fetched here: it is much less
// than what the kernels fetch while they work on keys and values that are not coded.
template <class Widen>
inline void widen_chunk(const QueryTile& tile, const ChunkBlocks& chunk,
                        const std::byte* const* from, const NextCodes& next, const std::byte** to) {
  const std::size_t block_elements = static_cast<std::size_t>(kLanes * tile.head_dim);
  for (int b = chunk.begin; b < chunk.end; ++b) {
    std::byte* block = tile.expanded + static_cast<std::size_t>(b) * block_elements * 2;
    Widen::widen(from[b], reinterpret_cast<std::uint16_t*>(block), block_elements);
    if constexpr (Widen::kFetches) {
      for (std::size_t at = 0; at < block_elements / 2; at += kLaneBytes) {
        prefetch_line(next.codes[b] + at);
      }
      if (next.has_scales) {
        prefetch_line(next.codes[b] + block_elements);
      }
    }
    to[b] = block;
  }
}

// The scales of a chunk of archived pages, bf16, as q8_0 has them.
struct WideScales {
  float numbers[kChunkBlocks][kLanes];
  const std::byte* blocks[kChunkBlocks] = {};

  WideScales(const ChunkBlocks& chunk, const std::byte* const* from) {
    for (int b = chunk.begin; b < chunk.end; ++b) {
      std::uint16_t halves[kLanes];
      __builtin_memcpy(halves, from[b], sizeof halves);
      for (int i = 0; i < kLanes; ++i) {
        const std::uint32_t bits = std::uint32_t{halves[i]} << 16;
        __builtin_memcpy(&numbers[b][i], &bits, sizeof bits);
      }
      blocks[b] = reinterpret_cast<const std::byte*>(numbers[b]);
    }
  }
};

template <class Simd, class Dot, class Widen>
inline void attend_widened(const QueryTile& tile, const ChunkBlocks& chunk,
                           const std::byte* const* key_scales, const std::byte* const* value_scales,
                           const Partial& result) {
  const std::byte* widened[kChunkBlocks] = {};
  widen_chunk<Widen>(tile, chunk, chunk.keys, {chunk.values, false}, widened);
  chunk_scores<Simd, Dot, !Widen::kFetches>(tile, chunk, widened, key_scales);
  for (int v = 0; v < tile.num_vectors; ++v) {
    chunk_weights<Simd, Dot>(tile, chunk, value_scales, v, result);
  }
  widen_chunk<Widen>(tile, chunk, chunk.values, {chunk.next_keys, true}, widened);
  chunk_values<Simd, Dot, !Widen::kFetches>(tile, chunk, widened, result);
}

template <class Simd, class Dot>
void attend_chunk_q8_0(const QueryTile& tile, const ChunkBlocks& chunk, const Partial& result) {
  attend_widened<Simd, Dot, Q8Widen<Simd>>(tile, chunk, chunk.key_scales, chunk.value_scales,
                                           result);
}

template <class Simd, class Dot>
void attend_chunk_r4(const QueryTile& tile, const ChunkBlocks& chunk, const Partial& result) {
  const WideScales key_scales(chunk, chunk.key_scales);
  const WideScales value_scales(chunk, chunk.value_scales);
  attend_widened<Simd, Dot, R4Widen<Simd>>(tile, chunk, key_scales.blocks, value_scales.blocks,
                                           result);
}

template <class Simd>
void merge_partial(const QueryTile& tile, const Partial& part, const Partial& state) {
  using F = typename Simd::F;
  for (int v = 0; v < tile.num_vectors; ++v) {
    if (part.seen[v] == 0.0F) {
      continue;
    }
    const float* from = part.out + v * tile.head_dim;
    float* to = state.out + v * tile.head_dim;
    if (state.seen[v] == 0.0F) {
      state.seen[v] = 1.0F;
      state.max[v] = part.max[v];
      state.sum[v] = part.sum[v];
      for (int i = 0; i < tile.head_dim; i += kLanes) {
        Simd::store(to + i, Simd::load(from + i));
      }
      continue;
    }
    const float max = state.max[v] > part.max[v] ? state.max[v] : part.max[v];
    const F old_factor = exp2_nonpositive<Simd, true>(Simd::broadcast(state.max[v] - max));
    const F new_factor = exp2_nonpositive<Simd, true>(Simd::broadcast(part.max[v] - max));
    state.max[v] = max;
    state.sum[v] =
        Simd::first_lane(Simd::fma(new_factor, Simd::broadcast(part.sum[v]),
                                   Simd::mul(old_factor, Simd::broadcast(state.sum[v]))));
    for (int i = 0; i < tile.head_dim; i += kLanes) {
      Simd::store(to + i, Simd::fma(new_factor, Simd::load(from + i),
                                    Simd::mul(old_factor, Simd::load(to + i))));
    }
  }
}

template <class Simd>
void finish_tile(const QueryTile& tile, const Partial& state, float* out, std::size_t row_stride) {
  for (int v = 0; v < tile.num_vectors; ++v) {
    const auto sum = Simd::broadcast(state.sum[v]);
    const float* from = state.out + v * tile.head_dim;
    float* to = out + static_cast<std::size_t>(v / tile.group) * row_stride +
                static_cast<std::size_t>(v % tile.group * tile.head_dim);
    for (int i = 0; i < tile.head_dim; i += kLanes) {
      Simd::store(to + i, Simd::div(Simd::load(from + i), sum));
    }
  }
}

template <class Simd>
constexpr KernelSet kernel_set() {
  using F32 = F32Dot<Simd>;
  using Bf16 = typename Simd::Bf16Dot;
  return KernelSet{{load_queries<Simd, F32>, attend_chunk<Simd, F32>, merge_partial<Simd>,
                    finish_tile<Simd>, nullptr, nullptr},
                   {load_queries<Simd, Bf16>, attend_chunk<Simd, Bf16>, merge_partial<Simd>,
                    finish_tile<Simd>, nullptr, nullptr},
                   {load_queries<Simd, Bf16>, attend_chunk_q8_0<Simd, Bf16>, merge_partial<Simd>,
                    finish_tile<Simd>, nullptr, nullptr},
                   {load_queries<Simd, Bf16>, attend_chunk_r4<Simd, Bf16>, merge_partial<Simd>,
                    finish_tile<Simd>, nullptr, nullptr}};
}

}  // namespace
}  // namespace karez
