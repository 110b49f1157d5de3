// Which blocks a row attends to, given the masses that a scan of the key index estimated.
//
// Always: the sink blocks and the recent window. The rest of the budget goes to the blocks with the
// highest score: for each query head a block's share of the head's whole mass (sink and recent
// blocks included), mean over the heads; each head's own best block comes before all others.
// Ties go to the lower position. A NaN loses to every number.
//
// Pure functions over arrays: knows no index, no cache, no threads.
// Thread: pure; callers bring the scratch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/select_kernels.h"

namespace karez {

struct SelectionRule {
  int token_budget = 2048;  // tokens of whole blocks, sink and recent ones included
  int recent_window = 128;  // tokens up to and including the row's own
  int sink_tokens = 16;
};

// The blocks of a row's context. [0, sink_blocks) and [recent_begin, num_blocks) are always
// selected; num_best of those in between are chosen.
struct SelectionShape {
  int num_blocks = 0;
  int sink_blocks = 0;
  int recent_begin = 0;
  int num_best = 0;

  int num_selected() const { return sink_blocks + num_best + (num_blocks - recent_begin); }
  bool selects_all() const { return num_selected() == num_blocks; }
};

// Of the row at `position` >= 0. A context of at most token_budget tokens is selected whole. Sink
// and recent blocks are kept also where the budget is less than they are.
SelectionShape selection_shape(const SelectionRule& rule, int position);

// One query head's masses as chunks of the scan gave them: block b of chunk c = b / chunk_blocks
// has the mass masses[b] x 2^references[c].
struct HeadMasses {
  std::span<const float> masses;      // [num_blocks]
  std::span<const float> references;  // [num_chunks], log2
  std::span<const float> sums;        // [num_chunks], of the chunk's masses
};

// What the functions work in, and with which kernels; keeps its memory from call to call.
struct SelectorScratch {
  const SelectKernels* kernels = &kPortableSelectKernels;
  std::vector<float> scores;
  std::vector<float> factors;
  std::vector<int> best;
  struct Forced {
    int block;
    float score;  // before it was raised
  };
  std::vector<Forced> forced;
  std::vector<std::int32_t> ranked;
  std::vector<float> ranked_scores;
  std::vector<std::uint32_t> keys;
  std::vector<std::uint32_t> candidates;
};

// scores[b]: mean over the heads of block b's share of the head's mass, plus 2 for blocks that are
// some head's best one in [shape.sink_blocks, shape.recent_begin), so that they win.
void block_scores(const SelectionShape& shape, std::span<const HeadMasses> heads, int chunk_blocks,
                  SelectorScratch& scratch);

// The k highest of scores, as ascending indices. Exact: NaN loses to every number, -0 equals 0,
// ties go to the lower index. Linear in scores.size(). Requires: 0 <= k <= scores.size(); out: [k].
void top_k(std::span<const float> scores, int k, std::span<std::int32_t> out,
           SelectorScratch& scratch);

// What else select_blocks() tells, where a span is not empty.
struct SelectionExtras {
  // [shape.num_selected()]: mean over the heads of a selected block's share, 0 to 1.
  std::span<float> masses;
  // The blocks that come next in the order of the choice, best first. At most as many as there are.
  std::span<std::int32_t> runners_up;
};

// Ascending block positions. out: [shape.num_selected()].
void select_blocks(const SelectionShape& shape, std::span<const HeadMasses> heads, int chunk_blocks,
                   SelectorScratch& scratch, std::span<std::int32_t> out,
                   const SelectionExtras& extras = {});

}  // namespace karez
