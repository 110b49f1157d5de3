// Scores: query vectors x blocks of keys, rows x blocks accumulators at a time.
//
// Part of chunk_kernels.h, with the same rules: unnamed namespace, no library functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/kernel_common.h"
#include "attention/kernel_table.h"

namespace karez {
namespace {

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
  typename Dot::Sum sums[std::size_t{R}][std::size_t{B}];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int b = 0; b < B; ++b) {
      sums[r][b] = Dot::clear();
    }
  }
  for (int first = 0; first < num_lines; first += kLinesPerFold) {
    const int last = first + kLinesPerFold < num_lines ? first + kLinesPerFold : num_lines;
    for (int line = first; line < last; ++line) {
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
          sums[r][b] = Dot::step(sums[r][b], queries + static_cast<std::size_t>(r) * row_bytes,
                                 line, keys[b]);
        }
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int b = 0; b < B; ++b) {
        sums[r][b] = Dot::fold(sums[r][b]);
      }
    }
  }
  F acc[std::size_t{R}][std::size_t{B}];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int b = 0; b < B; ++b) {
      acc[r][b] = Dot::total(sums[r][b]);
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

template <class Simd, class Dot, bool prefetch = true>
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
        scores_rows<Simd, Dot, R, prefetch>(tile, row, group, num_blocks, b);
      } else {
        scores_rows<Simd, Dot, R, false>(tile, row, group, num_blocks, b);
      }
    });
  }
}

}  // namespace
}  // namespace karez
