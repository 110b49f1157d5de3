// Brings what a layer's rows read into the fast tier, between selection and attention.
//
// Rows that select need the blocks of their lists; rows that do not, all blocks that they may see.
// A list may do without some of its missing blocks, which are those that were not in the fast tier
// when the layer selected: a hint row takes what is there (a probe, the heaviest of it), and under
// a bound other rows wait for the heaviest only. A missing block that some row of the step waits
// for is left out by none, so the order of rows and sequences does not matter. A store without a
// home tier needs nothing.
//
// Thread: begin_step() and end_step() by the runner's caller; on_selected() by the runner, in
// between.
// Owns: nothing but lists. The views of a step must be valid until its end.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/row_selector.h"
#include "attention/sequence_rows.h"
#include "engine/lookahead.h"
#include "engine/lookahead_meter.h"
#include "engine/missed_mass.h"
#include "engine/on_miss.h"
#include "engine/wanted_blocks.h"
#include "kv/kv_cache_manager.h"

namespace karez {

class BlockLoader final : public SelectionListener {
 public:
  // A bound needs lists with masses (SparseOptions::list_masses); without them it takes the first.
  explicit BlockLoader(const OnMiss& on_miss = {}, const LookaheadOptions& lookahead = {})
      : on_miss_(on_miss), lookahead_(lookahead) {}

  // hint_rows: what the hint rows of the step are, if there are any.
  void begin_step(KVCacheManager& kv, std::span<const SequenceRows> sequences,
                  LookaheadSource hint_rows = LookaheadSource::kProbe);
  struct SequenceReads {
    // A block was lost: the logits of the sequence's rows mean nothing, and its keys and values
    // must be given up.
    bool is_lost = false;
    std::int64_t blocks_read = 0;    // one for each layer, KV head and block, in each list
    std::int64_t blocks_loaded = 0;  // of these, brought up for this sequence
    MissedMass missed;               // all zero without a bound
  };
  // [sequences of the step]; all zero without a home tier.
  std::vector<SequenceReads> end_step();
  // Of all sequences, since the last call.
  MissedMass take_missed();

  void on_selected(int layer, std::span<SelectedBlocks> selected) override;
  int num_to_rank(int layer, int kv_head) const override;
  void on_ranked(int layer, std::span<const RankedBlocks> ranked) override;

  // Whether hint rows are of use (--lookahead probe).
  bool wants_probes() const { return lookahead_.uses(LookaheadSource::kProbe); }

  // Told of all lists. Borrowed; null: none.
  void set_meter(LookaheadMeter* meter) { meter_ = meter; }
  // Appends what rows read, of all sequences alike, before any list is shortened. Borrowed; null:
  // off.
  void set_recorder(std::vector<ListedBlock>* listed) { recorder_ = listed; }

  // What lists of the last layer went without: each block once, heaviest first.
  std::span<const WantedBlock> wanted() const { return wanted_; }

 private:
  template <typename Visit>
  void visit_lists(int layer, std::span<const SelectedBlocks> selected, Visit visit) const;
  template <typename Visit>
  void visit_dense_entries(int layer, Visit visit) const;
  template <typename Visit>
  void visit_dense_rows(int layer, Visit visit) const;
  void record(int layer, std::span<const SelectedBlocks> selected);
  BlockTableView table_of(int layer, int sequence) const {
    const auto group = static_cast<std::size_t>(kv_->group_of_layer(layer));
    return sequences_[static_cast<std::size_t>(sequence)].tables[group];
  }
  void need(std::size_t sequence, int kv_head, BlockId block);
  void need_what_is_waited_for(int layer, std::span<const SelectedBlocks> selected);
  void drop_what_is_not(int layer, std::span<SelectedBlocks> selected);
  void keep_heaviest(int layer, SelectedBlocks& list);
  void merge_wanted();

  OnMiss on_miss_;
  Lookahead lookahead_;
  LookaheadMeter* meter_ = nullptr;
  std::vector<ListedBlock>* recorder_ = nullptr;
  LookaheadSource hint_rows_ = LookaheadSource::kProbe;  // of the step
  KVCacheManager* kv_ = nullptr;  // between begin_step() and end_step(), if it has a home tier
  std::span<const SequenceRows> sequences_;
  std::vector<SequenceReads> reads_;
  std::vector<int> first_selecting_;  // [sequences], the first position that selects in the layer
  struct Listed {
    float mass;
    std::int32_t entry;  // of the block table
  };
  static bool is_heavier(const Listed& a, const Listed& b) {
    return a.mass != b.mass ? a.mass > b.mass : a.entry < b.entry;
  }
  std::vector<Listed> missing_;
  std::vector<Listed> found_;
  struct HeadBlock {
    int kv_head;
    BlockId block;
  };
  std::vector<HeadBlock> spared_;  // by probes
  std::vector<WantedBlock> wanted_;
  MissedMass missed_;
};

}  // namespace karez
