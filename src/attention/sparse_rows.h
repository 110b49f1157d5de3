// Which rows of a step select their blocks, and where their lists will lie.
//
// A row is sparse if its position says so (SequenceRows::first_sparse_position) and its context,
// which is what its table holds, is longer than what it may select. Both depend on the request
// alone, never on the batch: a row is treated alike in any company. The number of blocks that a row
// selects is known before its scores. Thread: values and pure functions.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "attention/block_selector.h"
#include "attention/key_index.h"
#include "attention/sequence_rows.h"

namespace karez {

enum class SelectPer {
  kHead,   // each KV head of a row has a list of its own
  kLayer,  // all KV heads of a row have the same
};

struct SparseOptions {
  int token_budget = 0;     // tokens that a row attends to in each layer and KV head; 0: all
  int recent_window = 128;  // of these, the latest, the row itself included
  int sink_tokens = 16;     // and the first ones
  int dense_layers = 0;     // so many first layers attend to everything
  KeyIndexKind block_index = KeyIndexKind::kR2;
  SelectPer select_per = SelectPer::kHead;
  int two_level_blocks = kTwoLevelBlocks;  // rows of more blocks: coarse_scan.h
  int recall_stride = 0;     // measure rows at multiples of it, slowly; 0: none; see take_recall()
  bool list_masses = false;  // tell the listener what the selected blocks are worth
  int runners_up = 0;        // and so many of the best ones that are left out
  bool rank_ahead = false;   // guess what the next layer will select: row_ranker.h

  bool is_on() const { return token_budget > 0; }
  bool is_two_level(int num_blocks) const {
    return codes_tokens(block_index) && num_blocks > two_level_blocks;
  }
  SelectionRule rule() const { return {token_budget, recent_window, sink_tokens}; }
};

struct SparseRow {
  int sequence;
  int row;  // within the sequence's rows
  int position;
  int place;  // among what its table holds: SequenceRows::place_of()
  bool is_hint;
  SelectionShape shape;
  std::size_t first_selected;  // of the list of KV head 0 among all lists of a layer

  // Each KV head has a list of its own, which may be shortened, also where all begin alike.
  std::size_t list_of_head(int kv_head) const {
    return first_selected +
           static_cast<std::size_t>(kv_head) * static_cast<std::size_t>(shape.num_selected());
  }
};

struct SparseRows {
  std::vector<SparseRow> rows;   // ascending by sequence, then row
  std::size_t num_selected = 0;  // entries of all lists of a layer
};

// The part of a row's list, ascending entries, that is archived.
std::span<const std::int32_t> archived_of(std::span<const std::int32_t> list,
                                          const ArchivedEntries& archived);

// Within a sequence the sparse rows are its last ones.
SparseRows find_sparse_rows(std::span<const SequenceRows> sequences, const SparseOptions& options,
                            int num_kv_heads);

}  // namespace karez
