#include "engine/block_loader.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "kv/residency.h"
#include "kv/window_blocks.h"

namespace karez {

void BlockLoader::begin_step(KVCacheManager& kv, std::span<const SequenceRows> sequences) {
  kv_ = kv.residency() == nullptr ? nullptr : &kv;
  sequences_ = sequences;
  if (kv_ != nullptr) {
    kv_->residency()->begin_step();
  }
  reads_.assign(sequences.size(), {});
}

std::vector<BlockLoader::SequenceReads> BlockLoader::end_step() {
  if (kv_ != nullptr) {
    kv_->residency()->end_step();
  }
  kv_ = nullptr;
  sequences_ = {};
  return std::exchange(reads_, {});
}

// Calls visit(sequence, KV head, block) for all that the layer's rows read.
template <typename Visit>
void BlockLoader::visit_needed(int layer, std::span<const SelectedBlocks> selected,
                               Visit visit) const {
  const auto group = static_cast<std::size_t>(kv_->group_of_layer(layer));
  const int window = kv_->layer_groups()[group].window;
  const int num_kv_heads = kv_->spec().num_kv_heads;
  for (const SelectedBlocks& list : selected) {
    const auto sequence = static_cast<std::size_t>(list.sequence);
    const BlockTableView table = sequences_[sequence].tables[group];
    for (const std::int32_t entry : list.blocks) {
      visit(sequence, list.kv_head, table[static_cast<std::size_t>(entry)]);
    }
  }
  for (std::size_t s = 0; s < sequences_.size(); ++s) {
    const SequenceRows& rows = sequences_[s];
    const int end = std::min(rows.first_position + rows.num_rows, first_selecting_[s]);
    if (end <= rows.first_position) {
      continue;
    }
    const std::int64_t last = num_blocks(end);
    for (std::int64_t i = first_kept_block(rows.first_position, window); i < last; ++i) {
      for (int head = 0; head < num_kv_heads; ++head) {
        visit(s, head, rows.tables[group][static_cast<std::size_t>(i)]);
      }
    }
  }
}

void BlockLoader::on_selected(int layer, std::span<SelectedBlocks> selected) {
  if (kv_ == nullptr) {
    return;
  }
  first_selecting_.assign(sequences_.size(), std::numeric_limits<int>::max());
  for (const SelectedBlocks& list : selected) {
    int& first = first_selecting_[static_cast<std::size_t>(list.sequence)];
    first = std::min(first, list.position);
  }
  Residency& residency = *kv_->residency();
  residency.begin_layer(layer);
  visit_needed(layer, selected, [&](std::size_t sequence, int head, BlockId block) {
    SequenceReads& reads = reads_[sequence];
    ++reads.blocks_read;
    reads.blocks_loaded += residency.need(head, block) ? 1 : 0;
  });
  if (residency.load().empty()) {
    return;
  }
  visit_needed(layer, selected, [&](std::size_t sequence, int, BlockId block) {
    if (residency.is_lost(block)) {
      reads_[sequence].is_lost = true;
    }
  });
}

}  // namespace karez
