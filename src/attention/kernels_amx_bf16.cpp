// AMX: scores and values of bf16 and q8_0 as products of tiles of 16 x 16 results.
//
// Tiles of few vectors (decode) wait for memory, and ordinary FMAs wait better: the processor looks
// further ahead past them. So those take FMAs *in the order of tdpbf16ps*: within a tile product,
// even and odd members of the pairs are summed apart from 0, then both sums are added to the
// result. The bits are the same, so a row's bits stay independent of how many rows came with it.
// Denormals are flushed to zero in both, as tdpbf16ps does by itself.
//
// Blocks are read in place: keys are B tiles of 16 lines (32 coordinates), values are B tiles of 8
// lines (16 tokens). Rows behind num_vectors hold anything; their results are ignored.
// See "Intel 64 and IA-32 Architectures Optimization Reference Manual", chapter on AMX.
#if defined(__x86_64__)

#include "attention/chunk_kernels.h"
#include "attention/simd_avx512_bf16.h"

namespace karez {
namespace {

using Simd = Avx512Bf16Simd;
using Dot = Simd::Bf16Dot;

constexpr int kFewVectors = 4;  // up to here FMAs are faster
constexpr int kTileRows = 16;
constexpr int kPairsOfTile = 16;           // lines of a key tile
constexpr int kLinesOfBlock = kLanes / 2;  // lines of a value tile
constexpr std::size_t kScoreRowBytes = std::size_t{kScoreStride} * sizeof(float);
constexpr std::size_t kWeightRowBytes = std::size_t{kScoreStride} * 2;

// What ldtilecfg reads. Tiles 0-3 accumulate, 4-5 are queries or weights, 6-7 keys or values.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64};
  std::uint8_t rows[16] = {kTileRows, kTileRows, kTileRows, kTileRows};

  // depth: lines of the right-hand tiles, that is pairs of the left-hand ones.
  explicit TileConfig(int depth) {
    for (int i = 4; i < 6; ++i) {
      row_bytes[i] = static_cast<std::uint16_t>(depth * 4);
      rows[i] = kTileRows;
      row_bytes[i + 2] = 64;
      rows[i + 2] = static_cast<std::uint8_t>(depth);
    }
  }
};
static_assert(sizeof(TileConfig) == 64);

// The compiler's tile intrinsics do not say that they read memory: this does.
inline void finish_stores() { asm volatile("" ::: "memory"); }

inline void configure(const TileConfig& config) {
  asm volatile("ldtilecfg %0" ::"m"(config) : "memory");
}

// Queries are padded with zeros to whole tiles of 32 coordinates. The last key tile then reads on
// into the values of the slot, where zeros meet them.
inline int padded_dim(int head_dim) { return (head_dim + 31) / 32 * 32; }

template <bool fetches>
inline void prefetch_lines(const std::byte* p, int count) {
  for (int i = 0; fetches && i < count; ++i) {
    prefetch_line(p + static_cast<std::size_t>(i) * kLaneBytes);
  }
}

// ---- FMAs in the order of tdpbf16ps ------------------------------------------------------------

struct TileOrderSimd : Avx512Simd {
  static constexpr int kRows = 4;
  static constexpr int kValueRows = 4;
  static constexpr int kValueVectors = 2;
  template <int R>
  static constexpr int blocks_for_rows() {
    return R <= 2 ? 4 : 2;
  }
};

struct TileOrderDot : Avx512Simd::Bf16Dot {
  struct Sum {
    __m512 even;
    __m512 odd;
    __m512 total;
  };
  static Sum clear() { return {Simd::zero(), Simd::zero(), Simd::zero()}; }
  static Sum step(Sum sum, const std::byte* row, int line, const Line& l) {
    const float* pair = reinterpret_cast<const float*>(row) + 2 * line;
    return {Simd::fma(Simd::broadcast(pair[0]), l.even, sum.even),
            Simd::fma(Simd::broadcast(pair[1]), l.odd, sum.odd), sum.total};
  }
  static Sum fold(Sum sum) {
    return {Simd::zero(), Simd::zero(), Simd::add(sum.total, Simd::add(sum.even, sum.odd))};
  }
  static __m512 total(Sum sum) { return sum.total; }
  static __m512 store(std::byte* p, __m512 x) {
    const __m256i halves = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x));
    const __m512 rounded =
        _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
    Simd::store(reinterpret_cast<float*>(p), rounded);
    return rounded;
  }
};

// fetches: whether these kernels fetch what comes next.

// ---- scores ------------------------------------------------------------------------------------

// Two row tiles x two blocks. Without `pair` the second block repeats the first, not stored.
template <bool fetches>
inline void scores_two_tiles(const QueryTile& tile, const std::byte* const* keys,
                             const std::byte* const* prefetch, int b, bool pair) {
  const int dim = padded_dim(tile.head_dim);
  const std::size_t query_bytes = static_cast<std::size_t>(dim) * 2;
  const std::byte* upper = tile.queries;
  const std::byte* lower = tile.queries + kTileRows * query_bytes;
  const std::byte* left = keys[b];
  const std::byte* right = keys[pair ? b + 1 : b];
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int i = 0; i < dim; i += 32) {
    const std::size_t query_at = static_cast<std::size_t>(i) * 2;
    const std::size_t key_at = static_cast<std::size_t>(i / 2) * kLaneBytes;
    _tile_loadd(6, left + key_at, kLaneBytes);
    _tile_loadd(4, upper + query_at, query_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, lower + query_at, query_bytes);
    _tile_dpbf16ps(2, 5, 6);
    _tile_loadd(7, right + key_at, kLaneBytes);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(3, 5, 7);
    prefetch_lines<fetches>(prefetch[b] + key_at, kPairsOfTile);
    prefetch_lines<fetches>(prefetch[pair ? b + 1 : b] + key_at, kPairsOfTile);
  }
  float* out = tile.scores + b * kLanes;
  _tile_stored(0, out, kScoreRowBytes);
  _tile_stored(2, out + kTileRows * kScoreStride, kScoreRowBytes);
  if (pair) {
    _tile_stored(1, out + kLanes, kScoreRowBytes);
    _tile_stored(3, out + kTileRows * kScoreStride + kLanes, kScoreRowBytes);
  }
}

// One row tile x four blocks, of which only the first `count` are stored.
template <bool fetches>
inline void scores_one_tile(const QueryTile& tile, const std::byte* const* keys,
                            const std::byte* const* prefetch, int b, int count) {
  const int dim = padded_dim(tile.head_dim);
  const std::size_t query_bytes = static_cast<std::size_t>(dim) * 2;
  const auto at = [b, count](int i) { return b + (i < count ? i : 0); };
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int i = 0; i < dim; i += 32) {
    const std::size_t key_at = static_cast<std::size_t>(i / 2) * kLaneBytes;
    _tile_loadd(4, tile.queries + static_cast<std::size_t>(i) * 2, query_bytes);
    _tile_loadd(5, keys[at(0)] + key_at, kLaneBytes);
    _tile_dpbf16ps(0, 4, 5);
    prefetch_lines<fetches>(prefetch[at(0)] + key_at, kPairsOfTile);
    _tile_loadd(6, keys[at(1)] + key_at, kLaneBytes);
    _tile_dpbf16ps(1, 4, 6);
    prefetch_lines<fetches>(prefetch[at(1)] + key_at, kPairsOfTile);
    _tile_loadd(7, keys[at(2)] + key_at, kLaneBytes);
    _tile_dpbf16ps(2, 4, 7);
    prefetch_lines<fetches>(prefetch[at(2)] + key_at, kPairsOfTile);
    _tile_loadd(5, keys[at(3)] + key_at, kLaneBytes);
    _tile_dpbf16ps(3, 4, 5);
    prefetch_lines<fetches>(prefetch[at(3)] + key_at, kPairsOfTile);
  }
  float* out = tile.scores + b * kLanes;
  _tile_stored(0, out, kScoreRowBytes);
  if (count > 1) {
    _tile_stored(1, out + kLanes, kScoreRowBytes);
  }
  if (count > 2) {
    _tile_stored(2, out + 2 * kLanes, kScoreRowBytes);
  }
  if (count > 3) {
    _tile_stored(3, out + 3 * kLanes, kScoreRowBytes);
  }
}

template <bool fetches>
void amx_scores(const QueryTile& tile, const ChunkBlocks& chunk, const std::byte* const* keys) {
  static constexpr int kMostBlocks = 4;
  configure(TileConfig(kPairsOfTile));
  if (tile.num_vectors > kTileRows) {
    for (int b = chunk.begin; b < chunk.end; b += 2) {
      scores_two_tiles<fetches>(tile, keys, chunk.values, b, b + 1 < chunk.end);
    }
    return;
  }
  for (int b = chunk.begin; b < chunk.end; b += kMostBlocks) {
    const int left = chunk.end - b;
    scores_one_tile<fetches>(tile, keys, chunk.values, b, left < kMostBlocks ? left : kMostBlocks);
  }
}

// ---- values ------------------------------------------------------------------------------------

// Two row tiles x 32 coordinates (16: the second half repeats the first and is not stored).
template <bool fetches>
inline void values_two_tiles(const QueryTile& tile, const ChunkBlocks& chunk,
                             const std::byte* const* values, int dim, float* out) {
  const std::size_t line_bytes = static_cast<std::size_t>(tile.head_dim) * 4;
  const bool pair = dim + kLanes < tile.head_dim;
  const std::size_t left = static_cast<std::size_t>(dim) * 4;
  const std::size_t right = pair ? left + kLaneBytes : left;
  const int num_prefetched = pair ? 2 * kLinesOfBlock : kLinesOfBlock;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int b = chunk.begin; b < chunk.end; ++b) {
    const std::byte* weights = tile.weights + static_cast<std::size_t>(b) * kLanes * 2;
    _tile_loadd(6, values[b] + left, line_bytes);
    _tile_loadd(4, weights, kWeightRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, weights + kTileRows * kWeightRowBytes, kWeightRowBytes);
    _tile_dpbf16ps(2, 5, 6);
    _tile_loadd(7, values[b] + right, line_bytes);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(3, 5, 7);
    prefetch_lines<fetches>(chunk.next_keys[b] + left * kLinesOfBlock, num_prefetched);
  }
  const std::size_t row_bytes = static_cast<std::size_t>(tile.head_dim) * sizeof(float);
  float* lower = out + kTileRows * tile.head_dim;
  _tile_stored(0, out + dim, row_bytes);
  _tile_stored(2, lower + dim, row_bytes);
  if (pair) {
    _tile_stored(1, out + dim + kLanes, row_bytes);
    _tile_stored(3, lower + dim + kLanes, row_bytes);
  }
}

// One row tile x 64 coordinates, of which only those below head_dim are stored.
template <bool fetches>
inline void values_one_tile(const QueryTile& tile, const ChunkBlocks& chunk,
                            const std::byte* const* values, int dim, float* out) {
  const std::size_t line_bytes = static_cast<std::size_t>(tile.head_dim) * 4;
  const int left = (tile.head_dim - dim) / kLanes;
  const int count = left < 4 ? left : 4;
  const auto at = [dim, count](int i) {
    return static_cast<std::size_t>(dim + (i < count ? i : 0) * kLanes) * 4;
  };
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int b = chunk.begin; b < chunk.end; ++b) {
    const std::byte* next = chunk.next_keys[b] + at(0) * kLinesOfBlock;
    _tile_loadd(4, tile.weights + static_cast<std::size_t>(b) * kLanes * 2, kWeightRowBytes);
    _tile_loadd(6, values[b] + at(0), line_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, values[b] + at(1), line_bytes);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(6, values[b] + at(2), line_bytes);
    _tile_dpbf16ps(2, 4, 6);
    _tile_loadd(7, values[b] + at(3), line_bytes);
    _tile_dpbf16ps(3, 4, 7);
    prefetch_lines<fetches>(next, count * kLinesOfBlock);
  }
  const std::size_t row_bytes = static_cast<std::size_t>(tile.head_dim) * sizeof(float);
  float* to = out + dim;
  _tile_stored(0, to, row_bytes);
  if (count > 1) {
    _tile_stored(1, to + kLanes, row_bytes);
  }
  if (count > 2) {
    _tile_stored(2, to + 2 * kLanes, row_bytes);
  }
  if (count > 3) {
    _tile_stored(3, to + 3 * kLanes, row_bytes);
  }
}

template <bool fetches>
void amx_values(const QueryTile& tile, const ChunkBlocks& chunk, const std::byte* const* values,
                const Partial& result) {
  configure(TileConfig(kLinesOfBlock));
  if (tile.num_vectors > kTileRows) {
    for (int dim = 0; dim < tile.head_dim; dim += 2 * kLanes) {
      values_two_tiles<fetches>(tile, chunk, values, dim, result.out);
    }
    return;
  }
  for (int dim = 0; dim < tile.head_dim; dim += 4 * kLanes) {
    values_one_tile<fetches>(tile, chunk, values, dim, result.out);
  }
}

// ---- the functions of the table ----------------------------------------------------------------

void load_padded_queries(const QueryTile& tile, const float* queries, std::size_t row_stride) {
  if (tile.num_vectors <= kFewVectors) {
    return load_queries<TileOrderSimd, TileOrderDot>(tile, queries, row_stride);
  }
  const int dim = padded_dim(tile.head_dim);
  for (int v = 0; v < tile.num_vectors; ++v) {
    const float* in = queries + static_cast<std::size_t>(v / tile.group) * row_stride +
                      static_cast<std::size_t>(v % tile.group * tile.head_dim);
    std::byte* out = tile.queries + static_cast<std::size_t>(v * dim) * 2;
    for (int i = 0; i < dim; i += kLanes) {
      Dot::store(out + static_cast<std::size_t>(i) * 2,
                 i < tile.head_dim ? Simd::load(in + i) : Simd::zero());
    }
  }
}

void attend_chunk_amx(const QueryTile& tile, const ChunkBlocks& chunk, const Partial& result) {
  if (tile.num_vectors <= kFewVectors) {
    return attend_chunk<TileOrderSimd, TileOrderDot>(tile, chunk, result);
  }
  finish_stores();
  amx_scores<true>(tile, chunk, chunk.keys);
  for (int v = 0; v < tile.num_vectors; ++v) {
    chunk_weights<Simd, Dot>(tile, chunk, nullptr, v, result);
  }
  finish_stores();
  amx_values<true>(tile, chunk, chunk.values, result);
}

template <class Widen>
inline void attend_widened_amx(const QueryTile& tile, const ChunkBlocks& chunk,
                               const std::byte* const* key_scales,
                               const std::byte* const* value_scales, const Partial& result) {
  const std::byte* widened[kChunkBlocks] = {};
  widen_chunk<Widen>(tile, chunk, chunk.keys, {chunk.values, false}, widened);
  finish_stores();
  amx_scores<!Widen::kFetches>(tile, chunk, widened);
  for (int v = 0; v < tile.num_vectors; ++v) {
    for (int b = chunk.begin; b < chunk.end; ++b) {
      float* scores = tile.scores + v * kScoreStride + b * kLanes;
      const auto* scales = reinterpret_cast<const float*>(key_scales[b]);
      Simd::store(scores, Simd::mul(Simd::load(scores), Simd::load(scales)));
    }
    chunk_weights<Simd, Dot>(tile, chunk, value_scales, v, result);
  }
  widen_chunk<Widen>(tile, chunk, chunk.values, {chunk.next_keys, true}, widened);
  finish_stores();
  amx_values<!Widen::kFetches>(tile, chunk, widened, result);
}

void attend_chunk_amx_q8_0(const QueryTile& tile, const ChunkBlocks& chunk, const Partial& result) {
  if (tile.num_vectors <= kFewVectors) {
    return attend_chunk_q8_0<TileOrderSimd, TileOrderDot>(tile, chunk, result);
  }
  attend_widened_amx<Q8Widen<Simd>>(tile, chunk, chunk.key_scales, chunk.value_scales, result);
}

void attend_chunk_amx_r4(const QueryTile& tile, const ChunkBlocks& chunk, const Partial& result) {
  if (tile.num_vectors <= kFewVectors) {
    return attend_chunk_r4<TileOrderSimd, TileOrderDot>(tile, chunk, result);
  }
  const WideScales key_scales(chunk, chunk.key_scales);
  const WideScales value_scales(chunk, chunk.value_scales);
  attend_widened_amx<R4Widen<Simd>>(tile, chunk, key_scales.blocks, value_scales.blocks, result);
}

// Tile configuration (64 bytes), then the float control register.
void save_registers(std::byte* state) {
  constexpr unsigned kFlushDenormals = 0x8040;
  const unsigned control = _mm_getcsr();
  asm volatile("sttilecfg (%0)" ::"r"(state) : "memory");
  __builtin_memcpy(state + 64, &control, sizeof control);
  _mm_setcsr(control | kFlushDenormals);
}

void restore_registers(const std::byte* state) {
  unsigned control;
  __builtin_memcpy(&control, state + 64, sizeof control);
  _mm_setcsr(control);
  asm volatile("ldtilecfg (%0)" ::"r"(state) : "memory");
}

}  // namespace

constinit const KernelSet kAmxBf16Kernels = {
    kernel_set<Simd>().f32,
    {load_padded_queries, attend_chunk_amx, merge_partial<Simd>, finish_tile<Simd>, save_registers,
     restore_registers},
    {load_padded_queries, attend_chunk_amx_q8_0, merge_partial<Simd>, finish_tile<Simd>,
     save_registers, restore_registers},
    {load_padded_queries, attend_chunk_amx_r4, merge_partial<Simd>, finish_tile<Simd>,
     save_registers, restore_registers}};

}  // namespace karez

#endif
