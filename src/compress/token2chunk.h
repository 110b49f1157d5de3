// Which pairs of a window are kept, by their scores.
//
// Thread: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "compress/compression_options.h"

namespace karez {

// `count` indices into scores, ascending.
//
//   kToken2Chunk  the better half of the budget (rounded up) by score; the rest one by one, each
//                 the best neighbour of anything kept, so that runs grow where attention is
//                 (Kara, arXiv 2607.01237)
//   kNone         the best
//   kFixed        runs [i x fixed_tokens, (i + 1) x fixed_tokens) by mean score; the beginning of
//                 the last one that is taken, so that it is `count` in all
//
// Of equal scores the lower index wins. NaN loses against everything, and so does a run with one.
// Requires: 0 <= count <= scores.size(); kFixed: fixed_tokens >= 1. O(n log n).
std::vector<std::int32_t> choose_kept(CompressChunk chunk, int fixed_tokens,
                                      std::span<const float> scores, int count);

}  // namespace karez
