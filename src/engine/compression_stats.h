// What compression has done: the figures that metrics and reports show.
//
// Thread: a value.
#pragma once

#include <cstdint>

namespace karez {

// Sums since start.
struct CompressionStats {
  std::int64_t windows = 0;
  std::int64_t early_windows = 0;  // due before their time, because slots were short
  std::int64_t pairs_kept = 0;     // of one layer and KV head each
  std::int64_t pairs_archived = 0;
  std::int64_t pairs_dropped = 0;
  std::int64_t pairs_brought_back = 0;  // archived ones that rows have attended to, each time
  std::int64_t bytes_saved = 0;         // of the fast tier, when the windows were published
  double seconds = 0;
  double longest_seconds = 0;    // between two steps, for one sequence
  std::int64_t query_bytes = 0;  // now: kept queries and choices
};

}  // namespace karez
