// The input of one step of the model: token ids and the rows of each sequence.
//
// Any mix of sequences and row counts: a prompt chunk, a decode row and draft rows are the same.
// Row r of the batch is tokens[r]; the rows of sequences[i] are consecutive.
// Thread: a value; views must stay valid during forward().
#pragma once

#include <vector>

#include "attention/key_index.h"
#include "attention/sequence_rows.h"
#include "base/token.h"

namespace karez {

struct ForwardBatch {
  std::vector<TokenId> tokens;
  std::vector<SequenceRows> sequences;  // ascending first_row, together all rows
  std::vector<int> output_rows;  // rows whose logits are wanted, strictly ascending; may be empty
  // Of the keys in the blocks of the KVCacheManager, borrowed; every step that writes them names
  // it. Null: there is none; then sparse attention must be off.
  const KeyIndex* key_index = nullptr;
};

}  // namespace karez
