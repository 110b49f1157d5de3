// Weights: 2^(score - maximum) with masks, soft cap and row sums.
//
// Part of chunk_kernels.h, with the same rules: unnamed namespace, no library functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/kernel_common.h"
#include "attention/kernel_table.h"

namespace karez {
namespace {

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

}  // namespace
}  // namespace karez
