// The interface between the scheduling of attention and its instruction-set specific kernels.
//
// Plain data and function pointers only: each kernels_*.cpp is compiled with its own -m flags, so
// nothing that it shares with other translation units may be an inline function (the linker could
// keep the copy that an older processor cannot run).
//
// A *query tile* is up to kTileVectors query vectors of one sequence and one KV head: consecutive
// rows, and for each row the `group` query heads that share the KV head. Vector v belongs to row
// v / group. Keys are visited in chunks of kChunkBlocks blocks at fixed positions.
// Thread: kernels touch only the memory named by their arguments.
#pragma once

#include <cstddef>
#include <cstdint>

namespace karez {

inline constexpr int kTileVectors = 32;
inline constexpr int kLanes = 16;  // tokens in a block; coordinates in a vector
inline constexpr int kChunkBlocks = 16;
inline constexpr int kRegisterStateBytes = 128;
// Floats from one vector's scores to the next: a chunk, and a cache line against set conflicts.
inline constexpr int kScoreStride = kChunkBlocks * kLanes + 16;

struct QueryTile {
  int head_dim;
  int num_vectors;
  int group;
  int first_position;  // of the tile's first row
  int window;          // 0: all
  float score_scale;   // scale x log2(e): scores are kept in units of log2
  float softcap;       // log2(e) x cap; 0: off
  float softcap_gain;  // 2 log2(e) scale / cap

  std::byte* queries;   // [num_vectors][head_dim rounded up to 32], 4 bytes each at most, in the
                        // kernel's own form
  float* scores;        // [num_vectors][kScoreStride]
  std::byte* weights;   // [num_vectors][kScoreStride], 4 bytes each at most, in the kernel's form
  std::byte* expanded;  // bf16 [kChunkBlocks][16 * head_dim], q8_0 and r4 only
};

// The blocks of one chunk that any row of the tile sees.
struct ChunkBlocks {
  int first_position;  // of the chunk
  int begin;           // blocks [begin, end) of the chunk
  int end;
  const std::byte* keys[kChunkBlocks];
  const std::byte* values[kChunkBlocks];
  const std::byte* key_scales[kChunkBlocks];    // q8_0: f32 [16]; r4: bf16 [16]
  const std::byte* value_scales[kChunkBlocks];  // likewise
  const std::byte* next_keys[kChunkBlocks];     // what to fetch meanwhile; never null
};

// Softmax over a part of the keys: maximum, sum of exponentials, weighted values.
struct Partial {
  float* out;   // [num_vectors][head_dim], not divided by sum
  float* max;   // [num_vectors], log2 units
  float* sum;   // [num_vectors]
  float* seen;  // [num_vectors], 0: the vector sees none of these keys, the rest is undefined
};

struct AttentionKernels {
  // queries: f32, rows at row_stride floats, the group's heads consecutive.
  void (*load_queries)(const QueryTile& tile, const float* queries, std::size_t row_stride);
  void (*attend_chunk)(const QueryTile& tile, const ChunkBlocks& chunk, const Partial& result);
  // state += part, in place. Chunks must come in ascending order.
  void (*merge)(const QueryTile& tile, const Partial& part, const Partial& state);
  // out = state.out / state.sum, rows at row_stride floats, the group's heads consecutive.
  void (*finish)(const QueryTile& tile, const Partial& state, float* out, std::size_t row_stride);
  // Called by each thread around a layer: keep and bring back register state that other code in
  // the same thread relies on. Null: there is none. state: kRegisterStateBytes.
  void (*save_registers)(std::byte* state);
  void (*restore_registers)(const std::byte* state);
};

// One instruction set's kernels by KV type, and those of archived pages (archive_page.h), which
// every type may have: they take rotated queries and give rotated values.
struct KernelSet {
  AttentionKernels f32;
  AttentionKernels bf16;
  AttentionKernels q8_0;
  AttentionKernels r4;
};

extern const KernelSet kPortableKernels;
#if defined(__x86_64__)
extern const KernelSet kAvx2Kernels;
extern const KernelSet kAvx512Kernels;
extern const KernelSet kAvx512Bf16Kernels;
extern const KernelSet kAmxBf16Kernels;
#endif

}  // namespace karez
