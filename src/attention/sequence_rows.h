// The rows of one sequence in a batched forward: consecutive positions, consecutive rows.
//
// A prompt chunk, a decode row and several draft rows are all the same thing: a range of tokens.
// A row at position p attends to positions [0, p] of its own sequence (or (p - window, p]).
#pragma once

#include <vector>

#include "kv/block_table.h"

namespace karez {

struct SequenceRows {
  std::vector<BlockTableView>
      tables;              // [num_layer_groups]; they cover first_position + num_rows tokens
  int first_position = 0;  // of the first row
  int num_rows = 0;        // > 0
  int first_row = 0;       // in the batch
};

}  // namespace karez
