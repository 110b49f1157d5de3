// What rows went without because it was not in the fast tier (--on-miss bounded=N).
//
// Counted by lists: one for each row that selects, layer and KV head. Hint rows are left out.
// Thread: a value.
#pragma once

#include <algorithm>
#include <cstdint>

namespace karez {

struct MissedMass {
  std::int64_t num_lists = 0;       // that could have lost something
  std::int64_t blocks_skipped = 0;  // from them
  // Shares of a list's attention that the skipped blocks had by the index' estimate, 0 to 1.
  double sum = 0;    // over the lists
  double worst = 0;  // of one list

  double mean() const { return num_lists > 0 ? sum / static_cast<double>(num_lists) : 0; }
  void add(const MissedMass& other) {
    num_lists += other.num_lists;
    blocks_skipped += other.blocks_skipped;
    sum += other.sum;
    worst = std::max(worst, other.worst);
  }
};

}  // namespace karez
