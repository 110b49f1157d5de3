// Blocks that rows would have read if they had been in the fast tier: what to fetch for the rows
// after them.
//
// Thread: a value.
#pragma once

#include "kv/kv_types.h"

namespace karez {

struct WantedBlock {
  int layer;
  int kv_head;
  BlockId block;
  float mass;    // share of a row's attention, the largest of those that want it; 0: not estimated
  bool is_hint;  // the row that wants it most only foretells
};

}  // namespace karez
