// Blocks that rows have selected, and those that they would have read if they had been in the fast
// tier: what to fetch for the rows after them.
//
// Thread: values.
#pragma once

#include <cstdint>

#include "kv/kv_types.h"

namespace karez {

struct WantedBlock {
  int layer;
  int kv_head;
  BlockId block;
  float mass;    // share of a row's attention, the largest of those that want it; 0: not estimated
  bool is_hint;  // the row that wants it most only foretells
};

// Of one sequence.
struct ListedBlock {
  int layer;
  int kv_head;
  std::int32_t entry;  // of the layer's block table
  friend auto operator<=>(const ListedBlock&, const ListedBlock&) = default;
};

}  // namespace karez
