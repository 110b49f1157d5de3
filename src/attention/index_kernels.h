// The interface to the kernels that scan the key index, as kernel_table.h is to those of attention
// (plain data and function pointers, for the same reason).
//
// A scan visits blocks in chunks of kScanBlocks at fixed positions. For every query vector it gives
// the *mass* of each block, the sum of 2^(score - reference) over its tokens, with the largest
// score of the chunk as the reference. Kinds without tokens (minmax, mean) have one score a block.
// Integer dot products are exact; scores and masses of different CPU levels differ by rounding
// only. Thread: kernels touch only the memory named by their arguments.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/kernel_table.h"

namespace karez {

inline constexpr int kScanBlocks = 64;
// Records that are fetched ahead of the one that is worked on.
inline constexpr int kScanAhead = 12;
// Query vectors that are scored at once, at most.
inline constexpr int kScanVectors = 4;

// The query heads of one (row, KV head).
struct IndexQuery {
  int head_dim;
  int num_vectors;
  const std::int8_t* codes;  // r2, r3: [num_vectors][head_dim], rotated
  const float* factors;      // r2, r3: [num_vectors], code dot product x token scale -> log2 score
  const float* offsets;      // r2, r3: [num_vectors], subtracted from the code dot product
  const float* queries;      // minmax, mean: [num_vectors][head_dim], scaled to log2 units
};

// Blocks of one chunk, from its first on.
struct IndexChunk {
  int num_blocks;   // 1 to kScanBlocks
  int last_tokens;  // tokens of the last block that the row sees, 1 to 16
  int num_records;  // >= num_blocks: what may be fetched ahead
  const std::byte* records[kScanBlocks + kScanAhead];
};

// Of one vector v: masses + v * stride, references[v * reference_stride], likewise sums.
struct ChunkMasses {
  float* masses;  // room for num_blocks rounded up to 16
  std::size_t stride;
  float* references;  // log2 units
  float* sums;        // of the chunk's masses
  std::size_t reference_stride;
};

// scores: f32 [kScanVectors][kScanBlocks * 16], scratch. r2, r3: after a scan of at most
// kScanVectors vectors, scores[v][b * 16 + token] x factors[v] are the scores of the chunk's
// tokens.
using ScanKernel = void (*)(const IndexQuery& query, const IndexChunk& chunk, float* scores,
                            const ChunkMasses& out);

struct IndexKernels {
  ScanKernel r2;
  ScanKernel r3;
  ScanKernel min_max;
  ScanKernel mean;
};

extern const IndexKernels kPortableIndexKernels;
#if defined(__x86_64__)
extern const IndexKernels kAvx2IndexKernels;
extern const IndexKernels kAvx512IndexKernels;
extern const IndexKernels kAvx512VnniIndexKernels;
#endif

}  // namespace karez
