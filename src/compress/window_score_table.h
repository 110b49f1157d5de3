// The interface between window_score.h and its instruction-set specific kernels.
//
// Plain data and functions only, as in attention/kernel_table.h: each window_score_*.cpp is
// compiled with its own -m flags, so it shares no inline function with other translation units.
// Thread: kernels touch only the memory named by their arguments.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/kernel_table.h"

namespace karez {

// Whole groups of rows of every instruction set.
inline constexpr int kScoreTileQueries = 24;

// Up to kScoreTileQueries queries and all keys that they share attention among.
struct ScoreTile {
  int head_dim;
  int num_queries;
  int num_window_blocks;
  int num_blocks;               // the window's, then those of the sinks
  const float* keys;            // [num_blocks][head_dim][16]; all finite
  const float* queries;         // [num_queries][head_dim]; query x key is in units of log2
  const std::int32_t* visible;  // [num_queries], >= 1: each sees so many of the window's tokens
  const std::int32_t* hidden;   // [num_hidden]: tokens of all blocks that nobody sees
  std::size_t num_hidden;
  float softcap;   // log2(e) x cap, then queries hold 2 log2(e) scale / cap; 0: off
  float* scores;   // scratch, score_scratch_floats(num_blocks), 64-byte aligned
  float* weights;  // f32 [16 x num_window_blocks]: each query's softmax is added
};

constexpr std::size_t score_scratch_floats(std::size_t num_blocks) {
  return (num_blocks + kChunkBlocks - 1) / kChunkBlocks * kScoreTileQueries * kScoreStride;
}

// Returns the number of queries that counted: those with a finite softmax of at least one key.
using AddWeights = int (*)(const ScoreTile& tile);

int add_weights_portable(const ScoreTile& tile);
#if defined(__x86_64__)
int add_weights_avx2(const ScoreTile& tile);
int add_weights_avx512(const ScoreTile& tile);
#endif

}  // namespace karez
