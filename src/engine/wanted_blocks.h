// Blocks that rows would have read if they had been in the fast tier: what to fetch for the rows
// after them.
//
// Thread: on_wanted() by the thread that runs between selection and attention.
#pragma once

#include <span>

#include "kv/kv_types.h"

namespace karez {

struct WantedBlock {
  int layer;
  int kv_head;
  BlockId block;
  float mass;  // share of a row's attention, the largest of those that want it; 0: not estimated
};

class WantedListener {
 public:
  virtual ~WantedListener() = default;
  // Of one layer, each block once, heaviest first; never empty. When what the layer reads has been
  // loaded, so that the fetch does not delay it.
  virtual void on_wanted(std::span<const WantedBlock> blocks) = 0;
};

}  // namespace karez
