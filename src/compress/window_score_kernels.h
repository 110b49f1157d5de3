// Softmax of a tile of queries over a window's keys, added up by key.
//
// Included by each window_score_*.cpp with its own -m flags; the rules of
// attention/chunk_kernels.h hold: unnamed namespace, no library functions. Scores lie as
// [chunks of kChunkBlocks blocks][kScoreTileQueries][kScoreStride], which is what
// attention/score_kernels.h writes for one chunk.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/kernel_common.h"
#include "attention/score_kernels.h"
#include "compress/window_score_table.h"

namespace karez {
namespace {

// Few blocks at a time, so that their keys stay in L1 for all queries of the tile.
constexpr int kBlocksInL1 = 4;

inline float* scores_at(const ScoreTile& tile, int query, int block) {
  const int row = block / kChunkBlocks * kScoreTileQueries + query;
  return tile.scores + row * kScoreStride + block % kChunkBlocks * kLanes;
}

template <class Simd>
inline void window_scores(const ScoreTile& tile) {
  const std::size_t block_floats = static_cast<std::size_t>(tile.head_dim) * kLanes;
  for (int first = 0; first < tile.num_blocks; first += kBlocksInL1) {
    const int left = tile.num_blocks - first;
    const int count = left < kBlocksInL1 ? left : kBlocksInL1;
    const std::byte* keys[kBlocksInL1];
    for (int b = 0; b < count; ++b) {
      keys[b] = reinterpret_cast<const std::byte*>(tile.keys + static_cast<std::size_t>(first + b) *
                                                                   block_floats);
    }
    const KeyGroup group{keys, keys, nullptr};
    QueryTile rows{};
    rows.head_dim = tile.head_dim;
    // scores_rows() only reads them.
    rows.queries = reinterpret_cast<std::byte*>(const_cast<float*>(tile.queries));
    rows.scores = scores_at(tile, 0, first);
    for_row_groups<Simd::kRows>(tile.num_queries, [&]<int R>(int row) {
      scores_rows<Simd, F32Dot<Simd>, R, false>(rows, row, group, count, 0);
    });
  }
}

// cap tanh(y) = cap sign(y) (1 - t) / (1 + t) with t = 2^(-2 log2(e) |y|), of a query's scores.
template <class Simd>
inline void cap_scores(const ScoreTile& tile, int query) {
  using F = typename Simd::F;
  const F one = Simd::broadcast(1.0F);
  const F cap = Simd::broadcast(tile.softcap);
  for (int b = 0; b < tile.num_blocks; ++b) {
    float* p = scores_at(tile, query, b);
    const F y = Simd::load(p);
    const F minus = Simd::sub(Simd::zero(), y);
    const F magnitude = Simd::max(y, minus);
    const F t = exp2_nonpositive<Simd, true>(Simd::sub(Simd::zero(), magnitude));
    const F capped = Simd::div(Simd::mul(cap, Simd::sub(one, t)), Simd::add(one, t));
    Simd::store(p, Simd::copy_sign(capped, y));
  }
}

// Calls body(block) for the blocks that a query sees.
template <class Body>
inline void for_seen_blocks(const ScoreTile& tile, int query, const Body& body) {
  const int seen = (tile.visible[query] + kLanes - 1) / kLanes;
  for (int b = 0; b < seen; ++b) {
    body(b);
  }
  for (int b = tile.num_window_blocks; b < tile.num_blocks; ++b) {
    body(b);
  }
}

// Turns a query's scores into softmax numerators. Returns 1 / their sum; 0: it counts nothing.
template <class Simd>
inline float softmax_numerators(const ScoreTile& tile, int query) {
  using F = typename Simd::F;
  if (tile.softcap > 0.0F) {
    cap_scores<Simd>(tile, query);
  }
  for (std::size_t i = 0; i < tile.num_hidden; ++i) {
    const std::int32_t token = tile.hidden[i];
    scores_at(tile, query, token / kLanes)[token % kLanes] = kMaskedScore;
  }
  const int visible = tile.visible[query];
  if (visible % kLanes != 0) {
    float* p = scores_at(tile, query, visible / kLanes);
    Simd::store(p, Simd::keep_lanes(Simd::load(p), 0, visible % kLanes, kMaskedScore));
  }
  F top = Simd::broadcast(kMaskedScore);
  for_seen_blocks(tile, query,
                  [&](int b) { top = Simd::max(top, Simd::load(scores_at(tile, query, b))); });
  const float max = Simd::reduce_max(top);
  if (!(max > 0.5F * kMaskedScore)) {  // nothing that it sees counts, or NaN
    return 0.0F;
  }
  const F max_vector = Simd::broadcast(max);
  F sum = Simd::zero();
  for_seen_blocks(tile, query, [&](int b) {
    float* p = scores_at(tile, query, b);
    const F weight = exp2_nonpositive<Simd, false>(Simd::sub(Simd::load(p), max_vector));
    Simd::store(p, weight);
    sum = Simd::add(sum, weight);
  });
  const float total = Simd::reduce_add(sum);
  // A score of infinity makes the difference to the maximum NaN.
  return total < -kMaskedScore ? 1.0F / total : 0.0F;
}

template <class Simd>
inline int add_weights(const ScoreTile& tile) {
  using F = typename Simd::F;
  window_scores<Simd>(tile);
  int counted = 0;
  int queries[kScoreTileQueries];
  int seen_blocks[kScoreTileQueries];
  float inverses[kScoreTileQueries];
  for (int q = 0; q < tile.num_queries; ++q) {
    const float inverse = softmax_numerators<Simd>(tile, q);
    if (inverse > 0.0F) {
      queries[counted] = q;
      seen_blocks[counted] = (tile.visible[q] + kLanes - 1) / kLanes;
      inverses[counted] = inverse;
      ++counted;
    }
  }
  for (int b = 0; b < tile.num_window_blocks; ++b) {
    float* weights = tile.weights + b * kLanes;
    F sum = Simd::load(weights);
    for (int i = 0; i < counted; ++i) {
      if (b < seen_blocks[i]) {
        sum = Simd::fma(Simd::load(scores_at(tile, queries[i], b)), Simd::broadcast(inverses[i]),
                        sum);
      }
    }
    Simd::store(weights, sum);
  }
  return counted;
}

}  // namespace
}  // namespace karez
