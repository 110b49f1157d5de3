// Brings what a layer's rows read into the fast tier, between selection and attention.
//
// Rows that select need the blocks of their lists; rows that do not, all blocks that they may see.
// A store without a home tier needs nothing.
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
#include "kv/kv_cache_manager.h"

namespace karez {

class BlockLoader final : public SelectionListener {
 public:
  void begin_step(KVCacheManager& kv, std::span<const SequenceRows> sequences);
  struct SequenceReads {
    // A block was lost: the logits of the sequence's rows mean nothing, and its keys and values
    // must be given up.
    bool is_lost = false;
    std::int64_t blocks_read = 0;    // one for each layer, KV head and block, in each list
    std::int64_t blocks_loaded = 0;  // of these, brought up for this sequence
  };
  // [sequences of the step]; all zero without a home tier.
  std::vector<SequenceReads> end_step();

  void on_selected(int layer, std::span<SelectedBlocks> selected) override;

 private:
  template <typename Visit>
  void visit_needed(int layer, std::span<const SelectedBlocks> selected, Visit visit) const;

  KVCacheManager* kv_ = nullptr;  // between begin_step() and end_step(), if it has a home tier
  std::span<const SequenceRows> sequences_;
  std::vector<SequenceReads> reads_;
  std::vector<int> first_selecting_;  // [sequences], the first position that selects in the layer
};

}  // namespace karez
