// Lookahead: turns what rows have selected, and what they are expected to select, into hints for
// the prefetch of the KV store (OasisKV, arXiv 2608.08097; see kv/lookahead.h for the sources).
//
//   previous  the runners-up of the row that generates: what its next row may select instead
//   draft     those of the draft rows that are verified beside it
//   probe     what a row that runs for this alone selected and did not find
//   self      the same of the model's own drafts
//   layer     what the rows are expected to select in the next layer
//
// Blocks that were used of late stay in the fast tier without any of this. Hints change what is
// there in time, and never what a row reads.
// Thread: BlockLoader's; num_to_rank() from any thread while nobody writes.
// Owns: nothing. Borrows the KV store during a step.
#pragma once

#include <span>

#include "attention/selection_listener.h"
#include "attention/sequence_rows.h"
#include "attention/sparse_rows.h"
#include "engine/wanted_blocks.h"
#include "kv/kv_cache_manager.h"
#include "kv/lookahead.h"

namespace karez {

struct LookaheadOptions {
  LookaheadSources sources;
  std::int64_t fetch_cap_bytes = 0;  // in a step; 0: from the measured rate of the tier
};

class Lookahead {
 public:
  explicit Lookahead(const LookaheadOptions& options) : options_(options) {}

  bool uses(LookaheadSource source) const { return options_.sources.contains(source); }
  // hint_rows: what the hint rows of the step are.
  void begin_step(KVCacheManager& kv, std::span<const SequenceRows> sequences,
                  LookaheadSource hint_rows);
  void end_step() { kv_ = nullptr; }

  // When what a layer reads has been loaded.
  void on_loaded(int layer, std::span<const SelectedBlocks> selected,
                 std::span<const WantedBlock> wanted);
  int num_to_rank(int layer, int kv_head) const;
  void on_ranked(int layer, std::span<const RankedBlocks> ranked);

 private:
  BlockTableView table_of(int layer, int sequence) const {
    const auto group = static_cast<std::size_t>(kv_->group_of_layer(layer));
    return sequences_[static_cast<std::size_t>(sequence)].tables[group];
  }

  LookaheadOptions options_;
  KVCacheManager* kv_ = nullptr;
  std::span<const SequenceRows> sequences_;
  LookaheadSource hint_rows_ = LookaheadSource::kProbe;
  int num_rows_ = 1;  // that read, of a layer that selects
};

// What selection has to tell for the sources.
void add_what_lookahead_needs(const LookaheadSources& sources, SparseOptions& sparse);

}  // namespace karez
