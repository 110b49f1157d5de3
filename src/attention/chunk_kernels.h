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

#include "attention/kernel_table.h"

namespace karez {
namespace {

constexpr std::size_t kLaneBytes = 64;    // one key or value line: 16 lanes x 4 bytes
constexpr float kMaskedScore = -1.0e30F;  // finite, so that no inf - inf arises
constexpr int kPrefetchLocality = 2;      // into L2: a chunk is as large as L1

// Dot products of f32 elements: one coordinate (or token) at a time.
template <class Simd>
struct F32Dot {
  using F = typename Simd::F;
  using Line = F;
  static constexpr int kPerLine = 1;
  static constexpr std::size_t kElementBytes = 4;  // of queries and weights
  static constexpr bool kAccurateExp = true;

  static Line load(const std::byte* p) { return Simd::load(reinterpret_cast<const float*>(p)); }
  static F step(F acc, const std::byte* row, int line, Line l) {
    return Simd::fma(Simd::broadcast(reinterpret_cast<const float*>(row)[line]), l, acc);
  }
  // Stores 16 elements and returns them as the dot product will see them.
  static F store(std::byte* p, F values) {
    Simd::store(reinterpret_cast<float*>(p), values);
    return values;
  }
};

// 2^x for x <= 0; exactly 1 for 0 and exactly +0 below -126. Polynomials: Chebyshev interpolation
// of (2^r - 1) / r on [-1/2, 1/2]. Relative error: 1.2e-7 (accurate), 7e-6 (otherwise; far below
// the 2e-3 of rounding a weight to bf16).
template <class Simd, bool accurate>
inline typename Simd::F exp2_nonpositive(typename Simd::F x) {
  using F = typename Simd::F;
  const F n = Simd::round(x);
  const F r = Simd::sub(x, n);
  F p;
  if constexpr (accurate) {
    p = Simd::fma(Simd::broadcast(0.000154531629F), r, Simd::broadcast(0.00133908634F));
    p = Simd::fma(p, r, Simd::broadcast(0.00961808256F));
    p = Simd::fma(p, r, Simd::broadcast(0.0555035711F));
    p = Simd::fma(p, r, Simd::broadcast(0.240226508F));
    p = Simd::fma(p, r, Simd::broadcast(0.693147188F));
  } else {
    p = Simd::fma(Simd::broadcast(0.00965671029F), r, Simd::broadcast(0.0558382829F));
    p = Simd::fma(p, r, Simd::broadcast(0.240225301F));
    p = Simd::fma(p, r, Simd::broadcast(0.693136734F));
  }
  p = Simd::fma(p, r, Simd::broadcast(1.0F));
  return Simd::scale_by_pow2(p, n, x);
}

inline void prefetch_line(const std::byte* p) { __builtin_prefetch(p, 0, kPrefetchLocality); }

// ---- scores: rows x blocks accumulators --------------------------------------------------------

struct KeyGroup {
  const std::byte* const* keys;      // of the group's first block
  const std::byte* const* prefetch;  // likewise: lines to fetch on the way
  const std::byte* const* scales;    // key scales; null unless q8_0
};

template <class Simd, class Dot, int R, int B, bool prefetch>
inline void scores_tile(int head_dim, const std::byte* queries, const KeyGroup& group,
                        float* scores) {
  using F = typename Simd::F;
  const std::size_t row_bytes = static_cast<std::size_t>(head_dim) * Dot::kElementBytes;
  const int num_lines = head_dim / Dot::kPerLine;
  F acc[std::size_t{R}][std::size_t{B}];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int b = 0; b < B; ++b) {
      acc[r][b] = Simd::zero();
    }
  }
  for (int line = 0; line < num_lines; ++line) {
    const std::size_t offset = static_cast<std::size_t>(line) * kLaneBytes;
    typename Dot::Line keys[std::size_t{B}];
#pragma GCC unroll 8
    for (int b = 0; b < B; ++b) {
      keys[b] = Dot::load(group.keys[b] + offset);
      if constexpr (prefetch) {
        prefetch_line(group.prefetch[b] + offset);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int b = 0; b < B; ++b) {
        acc[r][b] =
            Dot::step(acc[r][b], queries + static_cast<std::size_t>(r) * row_bytes, line, keys[b]);
      }
    }
  }
#pragma GCC unroll 8
  for (int b = 0; b < B; ++b) {
    if (group.scales != nullptr) {
      const F scale = Simd::load(reinterpret_cast<const float*>(group.scales[b]));
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        acc[r][b] = Simd::mul(acc[r][b], scale);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      Simd::store(scores + r * kScoreStride + b * kLanes, acc[r][b]);
    }
  }
}

template <class Simd, class Dot, int R, bool prefetch>
inline void scores_rows(const QueryTile& tile, int row, const KeyGroup& group, int num_blocks,
                        int first_block) {
  constexpr int kBlocks = Simd::template blocks_for_rows<R>();
  const std::byte* queries =
      tile.queries + static_cast<std::size_t>(row * tile.head_dim) * Dot::kElementBytes;
  float* scores = tile.scores + row * kScoreStride + first_block * kLanes;
  int b = 0;
  const auto at = [&group](int i) {
    return KeyGroup{group.keys + i, group.prefetch + i,
                    group.scales == nullptr ? nullptr : group.scales + i};
  };
  for (; b + kBlocks <= num_blocks; b += kBlocks) {
    scores_tile<Simd, Dot, R, kBlocks, prefetch>(tile.head_dim, queries, at(b),
                                                 scores + b * kLanes);
  }
  for (; b < num_blocks; ++b) {
    scores_tile<Simd, Dot, R, 1, prefetch>(tile.head_dim, queries, at(b), scores + b * kLanes);
  }
}

// Calls body.template operator()<R>(row) for groups of rows that cover [0, num_rows).
template <int max_rows, class Body>
inline void for_row_groups(int num_rows, const Body& body) {
  int row = 0;
  for (; row + max_rows <= num_rows; row += max_rows) {
    body.template operator()<max_rows>(row);
  }
  if constexpr (max_rows > 1) {
    switch (num_rows - row) {
      case 1:
        body.template operator()<1>(row);
        break;
      case 2:
        if constexpr (max_rows > 2) body.template operator()<2>(row);
        break;
      case 3:
        if constexpr (max_rows > 3) body.template operator()<3>(row);
        break;
      case 4:
        if constexpr (max_rows > 4) body.template operator()<4>(row);
        break;
      case 5:
        if constexpr (max_rows > 5) body.template operator()<5>(row);
        break;
      default:
        break;
    }
  }
}

template <class Simd, class Dot>
inline void chunk_scores(const QueryTile& tile, const ChunkBlocks& chunk,
                         const std::byte* const* keys, const std::byte* const* key_scales) {
  // Few blocks at a time, so that their keys stay in L1 for all row groups.
  constexpr int kGroup = 8;
  for (int b = chunk.begin; b < chunk.end; b += kGroup) {
    const int num_blocks = chunk.end - b < kGroup ? chunk.end - b : kGroup;
    const KeyGroup group{keys + b, chunk.values + b,
                         key_scales == nullptr ? nullptr : key_scales + b};
    for_row_groups<Simd::kRows>(tile.num_vectors, [&]<int R>(int row) {
      if (row == 0) {
        scores_rows<Simd, Dot, R, true>(tile, row, group, num_blocks, b);
      } else {
        scores_rows<Simd, Dot, R, false>(tile, row, group, num_blocks, b);
      }
    });
  }
}

// ---- weights: 2^(score - maximum) --------------------------------------------------------------

// Softmax numerators of one vector over one chunk, into tile.weights.
template <class Simd, class Dot>
inline void chunk_weights(const QueryTile& tile, const ChunkBlocks& chunk,
                          const std::byte* const* value_scales, int v, const Partial& result) {
  using F = typename Simd::F;
  const int position = tile.first_position + v / tile.group;
  int lo = tile.window > 0 ? position - tile.window + 1 - chunk.first_position : 0;
  lo = lo > 0 ? lo : 0;
  int hi = position + 1 - chunk.first_position;
  hi = hi < kChunkBlocks * kLanes ? hi : kChunkBlocks * kLanes;
  float* scores = tile.scores + v * kScoreStride;
  std::byte* weights =
      tile.weights + static_cast<std::size_t>(v * kScoreStride) * Dot::kElementBytes;
  const auto weights_of = [weights](int block) {
    return weights + static_cast<std::size_t>(block * kLanes) * Dot::kElementBytes;
  };
  if (lo >= hi) {
    result.seen[v] = 0.0F;
    for (int b = chunk.begin; b < chunk.end; ++b) {
      Dot::store(weights_of(b), Simd::zero());
    }
    return;
  }
  const int first = lo / kLanes;
  const int last = (hi + kLanes - 1) / kLanes;

  float scale = tile.score_scale;
  if (tile.softcap > 0.0F) {
    // cap tanh(y) = cap sign(y) (1 - t) / (1 + t) with t = 2^(-2 log2(e) |y|).
    const F gain = Simd::broadcast(tile.softcap_gain);
    const F one = Simd::broadcast(1.0F);
    for (int b = first; b < last; ++b) {
      const F y = Simd::mul(Simd::load(scores + b * kLanes), gain);
      const F magnitude = Simd::max(y, Simd::sub(Simd::zero(), y));
      const F t = exp2_nonpositive<Simd, true>(Simd::sub(Simd::zero(), magnitude));
      const F capped =
          Simd::div(Simd::mul(Simd::broadcast(tile.softcap), Simd::sub(one, t)), Simd::add(one, t));
      Simd::store(scores + b * kLanes, Simd::copy_sign(capped, y));
    }
    scale = 1.0F;
  }
  if (lo % kLanes != 0) {
    float* p = scores + first * kLanes;
    Simd::store(p, Simd::keep_lanes(Simd::load(p), lo % kLanes, kLanes, kMaskedScore));
  }
  if (hi % kLanes != 0) {
    float* p = scores + (last - 1) * kLanes;
    Simd::store(p, Simd::keep_lanes(Simd::load(p), 0, hi % kLanes, kMaskedScore));
  }

  F top = Simd::load(scores + first * kLanes);
  for (int b = first + 1; b < last; ++b) {
    top = Simd::max(top, Simd::load(scores + b * kLanes));
  }
  // Rounding is monotone, so this is the maximum of the scaled scores.
  const float max = Simd::reduce_max(top) * scale;
  const F scale_vector = Simd::broadcast(scale);
  const F max_vector = Simd::broadcast(max);
  F sum = Simd::zero();
  for (int b = chunk.begin; b < first; ++b) {
    Dot::store(weights_of(b), Simd::zero());
  }
  for (int b = first; b < last; ++b) {
    const F x = Simd::fms(Simd::load(scores + b * kLanes), scale_vector, max_vector);
    const F p = exp2_nonpositive<Simd, Dot::kAccurateExp>(x);
    if (value_scales == nullptr) {
      sum = Simd::add(sum, Dot::store(weights_of(b), p));  // as rounded: weights add up to 1
    } else {
      sum = Simd::add(sum, p);
      const F value_scale = Simd::load(reinterpret_cast<const float*>(value_scales[b]));
      const F scaled = Simd::mul(p, value_scale);
      // The scales of tokens that do not exist yet may be anything.
      const int keep_lo = lo - b * kLanes > 0 ? lo - b * kLanes : 0;
      const int keep_hi = hi - b * kLanes < kLanes ? hi - b * kLanes : kLanes;
      Dot::store(weights_of(b), keep_lo == 0 && keep_hi == kLanes
                                    ? scaled
                                    : Simd::keep_lanes(scaled, keep_lo, keep_hi, 0.0F));
    }
  }
  for (int b = last; b < chunk.end; ++b) {
    Dot::store(weights_of(b), Simd::zero());
  }
  result.seen[v] = 1.0F;
  result.max[v] = max;
  result.sum[v] = Simd::reduce_add(sum);
}

// ---- values: rows x coordinates accumulators ---------------------------------------------------

template <class Simd, class Dot, int R, int D, bool prefetch>
inline void values_tile(const QueryTile& tile, const ChunkBlocks& chunk,
                        const std::byte* const* values, int row, int dim, float* out) {
  using F = typename Simd::F;
  constexpr int kLinesOfBlock = kLanes / Dot::kPerLine;
  const std::size_t line_stride = static_cast<std::size_t>(tile.head_dim) * 4;
  const std::size_t row_bytes = static_cast<std::size_t>(kScoreStride) * Dot::kElementBytes;
  const std::byte* weights =
      tile.weights + static_cast<std::size_t>(row * kScoreStride) * Dot::kElementBytes;
  F acc[std::size_t{R}][std::size_t{D}];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int j = 0; j < D; ++j) {
      acc[r][j] = Simd::zero();
    }
  }
  for (int b = chunk.begin; b < chunk.end; ++b) {
    const std::byte* block = values[b] + static_cast<std::size_t>(dim) * 4;
    const std::byte* next = chunk.next_keys[b] + static_cast<std::size_t>(dim) * 4;
    const std::byte* block_weights =
        weights + static_cast<std::size_t>(b * kLanes) * Dot::kElementBytes;
    for (int line = 0; line < kLinesOfBlock; ++line) {
      typename Dot::Line lines[std::size_t{D}];
#pragma GCC unroll 8
      for (int j = 0; j < D; ++j) {
        const std::size_t offset =
            static_cast<std::size_t>(line) * line_stride + static_cast<std::size_t>(j) * kLaneBytes;
        lines[j] = Dot::load(block + offset);
        if constexpr (prefetch) {
          prefetch_line(next + offset);
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
        for (int j = 0; j < D; ++j) {
          acc[r][j] = Dot::step(acc[r][j], block_weights + static_cast<std::size_t>(r) * row_bytes,
                                line, lines[j]);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int j = 0; j < D; ++j) {
      Simd::store(out + r * tile.head_dim + j * kLanes, acc[r][j]);
    }
  }
}

template <class Simd, class Dot, int R, bool prefetch>
inline void values_rows(const QueryTile& tile, const ChunkBlocks& chunk,
                        const std::byte* const* values, int row, const Partial& result) {
  constexpr int kVectors = Simd::kValueVectors;
  float* out = result.out + row * tile.head_dim;
  int dim = 0;
  for (; dim + kVectors * kLanes <= tile.head_dim; dim += kVectors * kLanes) {
    values_tile<Simd, Dot, R, kVectors, prefetch>(tile, chunk, values, row, dim, out + dim);
  }
  for (; dim < tile.head_dim; dim += kLanes) {
    values_tile<Simd, Dot, R, 1, prefetch>(tile, chunk, values, row, dim, out + dim);
  }
}

template <class Simd, class Dot>
inline void chunk_values(const QueryTile& tile, const ChunkBlocks& chunk,
                         const std::byte* const* values, const Partial& result) {
  for_row_groups<Simd::kValueRows>(tile.num_vectors, [&]<int R>(int row) {
    if (row == 0) {
      values_rows<Simd, Dot, R, true>(tile, chunk, values, row, result);
    } else {
      values_rows<Simd, Dot, R, false>(tile, chunk, values, row, result);
    }
  });
}

// ---- the functions of the table ----------------------------------------------------------------

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

// q8_0: integers up to 127 are exact in bf16, so a chunk is widened first; scales go into the
// scores and into the weights. to: where each widened block begins.
template <class Simd>
inline void widen_chunk(const QueryTile& tile, const ChunkBlocks& chunk,
                        const std::byte* const* from, const std::byte** to) {
  const std::size_t block_elements = static_cast<std::size_t>(kLanes * tile.head_dim);
  for (int b = chunk.begin; b < chunk.end; ++b) {
    std::byte* block = tile.expanded + static_cast<std::size_t>(b) * block_elements * 2;
    Simd::widen_to_bf16(reinterpret_cast<const std::int8_t*>(from[b]),
                        reinterpret_cast<std::uint16_t*>(block), block_elements);
    to[b] = block;
  }
}

template <class Simd, class Dot>
void attend_chunk_q8_0(const QueryTile& tile, const ChunkBlocks& chunk, const Partial& result) {
  const std::byte* widened[kChunkBlocks] = {};
  widen_chunk<Simd>(tile, chunk, chunk.keys, widened);
  chunk_scores<Simd, Dot>(tile, chunk, widened, chunk.key_scales);
  for (int v = 0; v < tile.num_vectors; ++v) {
    chunk_weights<Simd, Dot>(tile, chunk, chunk.value_scales, v, result);
  }
  widen_chunk<Simd>(tile, chunk, chunk.values, widened);
  chunk_values<Simd, Dot>(tile, chunk, widened, result);
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
                    finish_tile<Simd>, nullptr, nullptr}};
}

}  // namespace
}  // namespace karez
