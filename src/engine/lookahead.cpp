#include "engine/lookahead.h"

#include <algorithm>
#include <cmath>

#include "kv/residency.h"

namespace karez {
namespace {

// More than the blocks that enter a list from one step to the next, nearly always.
constexpr int kRunnersUp = 32;
// So many blocks are named for each that is expected.
constexpr float kNamedPerEntering = 1.0F;

}  // namespace

void add_what_lookahead_needs(const LookaheadSources& sources, SparseOptions& sparse) {
  const auto has = [&](LookaheadSource source) { return sources.contains(source); };
  if (has(LookaheadSource::kPrevious) || has(LookaheadSource::kDraft)) {
    sparse.runners_up = kRunnersUp;
  }
  sparse.list_masses =
      sparse.list_masses || has(LookaheadSource::kProbe) || has(LookaheadSource::kSelf);
  sparse.rank_ahead = has(LookaheadSource::kLayer);
}

void Lookahead::begin_step(KVCacheManager& kv, std::span<const SequenceRows> sequences,
                           LookaheadSource hint_rows) {
  kv_ = &kv;
  kv.residency()->set_fetch_cap(options_.fetch_cap_bytes);
  sequences_ = sequences;
  hint_rows_ = hint_rows;
  num_rows_ = 0;
  for (const SequenceRows& rows : sequences) {
    num_rows_ += std::max(0, rows.first_position + rows.num_rows - rows.num_hint_rows -
                                 std::max(rows.first_position, rows.first_sparse_position));
  }
  num_rows_ = std::max(1, num_rows_);
}

void Lookahead::on_loaded(int layer, std::span<const SelectedBlocks> selected,
                          std::span<const WantedBlock> wanted) {
  Residency& residency = *kv_->residency();
  for (const WantedBlock& block : wanted) {
    // What rows went without they want the next time.
    const LookaheadSource source = block.is_hint ? hint_rows_ : LookaheadSource::kPrevious;
    if (!block.is_hint || uses(source)) {
      residency.hint(block.layer, block.kv_head, block.block, source);
    }
  }
  if (uses(LookaheadSource::kPrevious) || uses(LookaheadSource::kDraft)) {
    for (const SelectedBlocks& list : selected) {
      const SequenceRows& rows = sequences_[static_cast<std::size_t>(list.sequence)];
      const auto source = list.position == rows.first_position ? LookaheadSource::kPrevious
                                                               : LookaheadSource::kDraft;
      if (list.is_hint || !uses(source)) {
        continue;
      }
      const auto count = static_cast<std::size_t>(num_to_rank(layer, list.kv_head));
      const BlockTableView table = table_of(layer, list.sequence);
      for (const std::int32_t entry :
           list.runners_up.first(std::min(count, list.runners_up.size()))) {
        residency.hint(layer, list.kv_head, table[static_cast<std::size_t>(entry)], source);
      }
    }
  }
  residency.prefetch();
}

int Lookahead::num_to_rank(int layer, int kv_head) const {
  const float entering = kv_->residency()->num_entering(layer, kv_head);
  return static_cast<int>(std::ceil(kNamedPerEntering * entering / static_cast<float>(num_rows_)));
}

void Lookahead::on_ranked(int layer, std::span<const RankedBlocks> ranked) {
  Residency& residency = *kv_->residency();
  std::size_t longest = 0;
  for (const RankedBlocks& list : ranked) {
    longest = std::max(longest, list.blocks.size());
  }
  // The best of all lists first.
  for (std::size_t i = 0; i < longest; ++i) {
    for (const RankedBlocks& list : ranked) {
      if (i < list.blocks.size()) {
        const BlockTableView table = table_of(layer, list.sequence);
        residency.hint(layer, list.kv_head, table[static_cast<std::size_t>(list.blocks[i])],
                       LookaheadSource::kLayer);
      }
    }
  }
  residency.prefetch();
}

}  // namespace karez
