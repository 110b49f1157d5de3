// Values: weights x blocks of values, rows x coordinates accumulators at a time.
//
// Part of chunk_kernels.h, with the same rules: unnamed namespace, no library functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/kernel_common.h"
#include "attention/kernel_table.h"

namespace karez {
namespace {

template <class Simd, class Dot, int R, int D, bool prefetch>
inline void values_tile(const QueryTile& tile, const ChunkBlocks& chunk,
                        const std::byte* const* values, int row, int dim, float* out) {
  constexpr int kLinesOfBlock = kLanes / Dot::kPerLine;
  const std::size_t line_stride = static_cast<std::size_t>(tile.head_dim) * 4;
  const std::size_t row_bytes = static_cast<std::size_t>(kScoreStride) * Dot::kElementBytes;
  const std::byte* weights =
      tile.weights + static_cast<std::size_t>(row * kScoreStride) * Dot::kElementBytes;
  typename Dot::Sum acc[std::size_t{R}][std::size_t{D}];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int j = 0; j < D; ++j) {
      acc[r][j] = Dot::clear();
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
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int j = 0; j < D; ++j) {
        acc[r][j] = Dot::fold(acc[r][j]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int j = 0; j < D; ++j) {
      Simd::store(out + r * tile.head_dim + j * kLanes, Dot::total(acc[r][j]));
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

template <class Simd, class Dot, bool prefetch = true>
inline void chunk_values(const QueryTile& tile, const ChunkBlocks& chunk,
                         const std::byte* const* values, const Partial& result) {
  for_row_groups<Simd::kValueRows>(tile.num_vectors, [&]<int R>(int row) {
    if (row == 0) {
      values_rows<Simd, Dot, R, prefetch>(tile, chunk, values, row, result);
    } else {
      values_rows<Simd, Dot, R, false>(tile, chunk, values, row, result);
    }
  });
}

}  // namespace
}  // namespace karez
