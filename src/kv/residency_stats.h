// Figures of Residency.
//
// Thread: a value.
#pragma once

#include <cstdint>

#include "kv/prefetch_stats.h"

namespace karez {

struct ResidencyStats {
  std::int64_t home_bytes_total = 0;
  std::int64_t home_bytes_used = 0;
  std::int64_t home_blocks_total = 0;  // each of one layer and head; padding takes room too
  std::int64_t blocks_clean = 0;       // in the fast tier and at home
  std::int64_t bytes_read = 0;         // from home
  std::int64_t bytes_written = 0;      // to home
  std::int64_t blocks_needed = 0;      // that layers asked for, each once a layer and step
  std::int64_t demand_misses = 0;      // of these, not in the fast tier; late prefetches too
  std::int64_t evictions = 0;
  std::int64_t blocks_lost = 0;  // reads that failed, or found no room
  std::int64_t write_failures = 0;
  double stall_seconds = 0;  // in load()
  PrefetchStats prefetch;
};

}  // namespace karez
