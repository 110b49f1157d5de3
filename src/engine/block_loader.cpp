#include "engine/block_loader.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <tuple>
#include <utility>

#include "kv/residency.h"
#include "kv/window_blocks.h"

namespace karez {
namespace {

// A probe attends to a part of what it selects.
constexpr std::size_t kProbeParts = 2;
constexpr std::size_t kLeastProbeBlocks = 16;

// 0 where selection was not asked.
float mass_of(const SelectedBlocks& list, std::size_t i) {
  return list.masses.empty() ? 0.0F : list.masses[i];
}

}  // namespace

void BlockLoader::begin_step(KVCacheManager& kv, std::span<const SequenceRows> sequences,
                             LookaheadSource hint_rows) {
  kv_ = kv.residency() == nullptr ? nullptr : &kv;
  sequences_ = sequences;
  if (kv_ != nullptr) {
    hint_rows_ = hint_rows;
    lookahead_.begin_step(kv, sequences, hint_rows);
    kv_->residency()->begin_step();
  }
  reads_.assign(sequences.size(), {});
}

std::vector<BlockLoader::SequenceReads> BlockLoader::end_step() {
  if (kv_ != nullptr) {
    lookahead_.end_step();
    kv_->residency()->end_step();
  }
  kv_ = nullptr;
  sequences_ = {};
  return std::exchange(reads_, {});
}

MissedMass BlockLoader::take_missed() { return std::exchange(missed_, {}); }

// Calls visit(sequence, KV head, block) for all that lists name.
template <typename Visit>
void BlockLoader::visit_lists(int layer, std::span<const SelectedBlocks> selected,
                              Visit visit) const {
  for (const SelectedBlocks& list : selected) {
    const BlockTableView table = table_of(layer, list.sequence);
    for (const std::int32_t entry : list.blocks) {
      visit(static_cast<std::size_t>(list.sequence), list.kv_head,
            table[static_cast<std::size_t>(entry)]);
    }
  }
}

// Calls visit(sequence, KV head, entry) for all that the other rows see.
template <typename Visit>
void BlockLoader::visit_dense_entries(int layer, Visit visit) const {
  const auto group = static_cast<std::size_t>(kv_->group_of_layer(layer));
  const int window = kv_->layer_groups()[group].window;
  const int num_kv_heads = kv_->spec().num_kv_heads;
  for (std::size_t s = 0; s < sequences_.size(); ++s) {
    const SequenceRows& rows = sequences_[s];
    const int end = std::min(rows.first_position + rows.num_rows, first_selecting_[s]);
    if (end <= rows.first_position) {
      continue;
    }
    const std::int64_t last = num_blocks(rows.place_of(end, window));
    for (std::int64_t i = first_kept_block(rows.first_position, window); i < last; ++i) {
      for (int head = 0; head < num_kv_heads; ++head) {
        visit(s, head, static_cast<std::int32_t>(i));
      }
    }
  }
}

// As visit_lists().
template <typename Visit>
void BlockLoader::visit_dense_rows(int layer, Visit visit) const {
  const auto group = static_cast<std::size_t>(kv_->group_of_layer(layer));
  visit_dense_entries(layer, [&](std::size_t sequence, int head, std::int32_t entry) {
    visit(sequence, head, sequences_[sequence].tables[group][static_cast<std::size_t>(entry)]);
  });
}

void BlockLoader::need(std::size_t sequence, int kv_head, BlockId block) {
  reads_[sequence].blocks_loaded += kv_->residency()->need(kv_head, block) ? 1 : 0;
}

// Every row's share of what is loaded, before anything is dropped.
void BlockLoader::need_what_is_waited_for(int layer, std::span<const SelectedBlocks> selected) {
  visit_dense_rows(
      layer, [&](std::size_t sequence, int head, BlockId block) { need(sequence, head, block); });
  const KVLayerView view = kv_->layer(layer);
  for (const SelectedBlocks& list : selected) {
    if (list.is_hint) {
      continue;
    }
    const BlockTableView table = table_of(layer, list.sequence);
    const SlotId* slots = view.slots_of_head(list.kv_head);
    missing_.clear();
    BlockId last_missing = BlockId::none();
    for (std::size_t i = 0; i < list.blocks.size(); ++i) {
      const std::int32_t entry = list.blocks[i];
      const BlockId block = table[static_cast<std::size_t>(entry)];
      if (!slots[block.value].is_none()) {
        continue;
      }
      // Archived pages of one block are entries in a row: it comes once for all of them.
      if (block == last_missing) {
        missing_.back().mass += mass_of(list, i);
      } else {
        missing_.push_back({mass_of(list, i), entry});
      }
      last_missing = block;
    }
    if (on_miss_.bound && missing_.size() > static_cast<std::size_t>(*on_miss_.bound)) {
      const auto bound = static_cast<std::ptrdiff_t>(*on_miss_.bound);
      std::nth_element(missing_.begin(), missing_.begin() + bound, missing_.end(), is_heavier);
      missing_.resize(static_cast<std::size_t>(bound));
    }
    for (const Listed& missing : missing_) {
      need(static_cast<std::size_t>(list.sequence), list.kv_head,
           table[static_cast<std::size_t>(missing.entry)]);
    }
  }
}

void BlockLoader::drop_what_is_not(int layer, std::span<SelectedBlocks> selected) {
  const Residency& residency = *kv_->residency();
  const KVLayerView view = kv_->layer(layer);
  for (SelectedBlocks& list : selected) {
    const BlockTableView table = table_of(layer, list.sequence);
    const SlotId* slots = view.slots_of_head(list.kv_head);
    MissedMass missed;
    missed.num_lists = 1;
    std::size_t kept = 0;
    found_.clear();
    for (std::size_t i = 0; i < list.blocks.size(); ++i) {
      const std::int32_t entry = list.blocks[i];
      const BlockId block = table[static_cast<std::size_t>(entry)];
      const float mass = mass_of(list, i);
      // The row's own block is the last.
      if (i + 1 == list.blocks.size() || !slots[block.value].is_none() ||
          residency.was_read(layer, list.kv_head, block)) {
        list.blocks[kept++] = entry;
        found_.push_back({mass, entry});
        continue;
      }
      wanted_.push_back({layer, list.kv_head, block, mass, list.is_hint});
      ++missed.blocks_skipped;
      missed.sum += static_cast<double>(mass);
    }
    list.blocks = list.blocks.first(kept);
    if (list.is_hint && hint_rows_ == LookaheadSource::kProbe) {
      keep_heaviest(layer, list);
    }
    if (on_miss_.bound && !list.is_hint) {
      missed.worst = missed.sum;
      reads_[static_cast<std::size_t>(list.sequence)].missed.add(missed);
      missed_.add(missed);
    }
  }
}

// Of a row whose result nobody uses, what is enough to ask the next layers the right questions. The
// others stay in the fast tier all the same: the next row will want them.
void BlockLoader::keep_heaviest(int layer, SelectedBlocks& list) {
  const std::size_t most = std::max(kLeastProbeBlocks, list.blocks.size() / kProbeParts);
  if (found_.size() <= most) {
    return;
  }
  const auto own = found_.end() - 1;
  std::nth_element(found_.begin(), found_.begin() + static_cast<std::ptrdiff_t>(most) - 1, own,
                   is_heavier);
  const BlockTableView table = table_of(layer, list.sequence);
  for (auto left = found_.begin() + static_cast<std::ptrdiff_t>(most) - 1; left != own; ++left) {
    spared_.push_back({list.kv_head, table[static_cast<std::size_t>(left->entry)]});
  }
  for (std::size_t i = 0; i + 1 < most; ++i) {
    list.blocks[i] = found_[i].entry;
  }
  list.blocks[most - 1] = own->entry;
  list.blocks = list.blocks.first(most);
  std::ranges::sort(list.blocks);
}

void BlockLoader::merge_wanted() {
  const auto by_block = [](const WantedBlock& a, const WantedBlock& b) {
    return std::tuple(a.kv_head, a.block.value, -a.mass) <
           std::tuple(b.kv_head, b.block.value, -b.mass);
  };
  const auto is_same = [](const WantedBlock& a, const WantedBlock& b) {
    return a.kv_head == b.kv_head && a.block == b.block;
  };
  std::ranges::sort(wanted_, by_block);
  wanted_.erase(std::unique(wanted_.begin(), wanted_.end(), is_same), wanted_.end());
  std::ranges::stable_sort(wanted_, std::greater<>(), &WantedBlock::mass);
}

void BlockLoader::record(int layer, std::span<const SelectedBlocks> selected) {
  for (const SelectedBlocks& list : selected) {
    for (const std::int32_t entry : list.blocks) {
      recorder_->push_back({layer, list.kv_head, entry});
    }
  }
  visit_dense_entries(layer, [&](std::size_t, int head, std::int32_t entry) {
    recorder_->push_back({layer, head, entry});
  });
}

void BlockLoader::on_selected(int layer, std::span<SelectedBlocks> selected) {
  if (kv_ == nullptr) {
    return;
  }
  first_selecting_.assign(sequences_.size(), std::numeric_limits<int>::max());
  bool may_drop = on_miss_.bound.has_value() && !selected.empty();
  for (const SelectedBlocks& list : selected) {
    int& first = first_selecting_[static_cast<std::size_t>(list.sequence)];
    first = std::min(first, list.position);
    may_drop = may_drop || list.is_hint;
  }
  if (meter_ != nullptr) {
    meter_->note(layer, selected);
  }
  if (recorder_ != nullptr) {
    record(layer, selected);
  }
  Residency& residency = *kv_->residency();
  residency.begin_layer(layer);
  wanted_.clear();
  spared_.clear();
  if (may_drop) {
    need_what_is_waited_for(layer, selected);
    drop_what_is_not(layer, selected);
  }
  const auto read = [&](std::size_t sequence, int head, BlockId block) {
    ++reads_[sequence].blocks_read;
    need(sequence, head, block);
  };
  visit_lists(layer, selected, read);
  visit_dense_rows(layer, read);
  if (!residency.load().empty()) {
    const auto note_lost = [&](std::size_t sequence, int, BlockId block) {
      if (residency.is_lost(block)) {
        reads_[sequence].is_lost = true;
      }
    };
    visit_lists(layer, selected, note_lost);
    visit_dense_rows(layer, note_lost);
  }
  for (const auto& [kv_head, block] : spared_) {
    residency.hint(layer, kv_head, block, hint_rows_);
  }
  merge_wanted();
  lookahead_.on_loaded(layer, selected, wanted_);
}

int BlockLoader::num_to_rank(int layer, int kv_head) const {
  return kv_ == nullptr ? 0 : lookahead_.num_to_rank(layer, kv_head);
}

void BlockLoader::on_ranked(int layer, std::span<const RankedBlocks> ranked) {
  if (kv_ != nullptr) {
    lookahead_.on_ranked(layer, ranked);
  }
}

}  // namespace karez
