// What became of hints and prefetches. Counts of blocks, each of one layer and KV head.
//
//   predicted = already_resident + already_hinted + fetched + dropped, after prefetch()
//   fetched = useful + late + wasted + failed + those that are under way or not needed yet
//
// Thread: values.
#pragma once

#include <array>
#include <cstdint>

#include "kv/lookahead.h"

namespace karez {

struct PrefetchStats {
  struct BySource {
    std::int64_t predicted = 0;  // hints
    std::int64_t fetched = 0;    // reads begun for them
    std::int64_t useful = 0;     // of these, in the fast tier when they were needed
    std::int64_t late = 0;       // needed while still under way; load() waited for them
    std::int64_t wasted = 0;     // evicted, freed or written to before they were needed

    // Calls visit(count) for each of the above.
    template <typename Visit>
    static void each(Visit visit) {
      for (const auto count : {&BySource::predicted, &BySource::fetched, &BySource::useful,
                               &BySource::late, &BySource::wasted}) {
        visit(count);
      }
    }
  };
  std::array<BySource, kNumLookaheadSources> by_source = {};  // index: LookaheadSource
  std::int64_t already_resident = 0;                          // of the predicted
  std::int64_t already_hinted = 0;  // of the predicted: under way, or hinted twice
  std::int64_t dropped = 0;         // of the predicted: beyond the cap, or no victim
  std::int64_t failed = 0;          // of the fetched: not lost, they stay at home
  std::int64_t bytes_fetched = 0;
  std::int64_t bytes_wasted = 0;
  std::int64_t layers_read = 0;   // calls of load() for which something was needed
  std::int64_t layers_ready = 0;  // of these, all was in the fast tier

  BySource& of(LookaheadSource source) { return by_source[static_cast<std::size_t>(source)]; }
  const BySource& of(LookaheadSource source) const {
    return by_source[static_cast<std::size_t>(source)];
  }
  BySource total() const {
    BySource sum;
    for (const BySource& counts : by_source) {
      BySource::each([&](auto count) { sum.*count += counts.*count; });
    }
    return sum;
  }
  // What was counted since `before`.
  PrefetchStats since(const PrefetchStats& before) const {
    PrefetchStats change = *this;
    for (const LookaheadSource source : kLookaheadSources) {
      BySource::each([&](auto count) { change.of(source).*count -= before.of(source).*count; });
    }
    for (const auto count :
         {&PrefetchStats::already_resident, &PrefetchStats::already_hinted, &PrefetchStats::dropped,
          &PrefetchStats::failed, &PrefetchStats::bytes_fetched, &PrefetchStats::bytes_wasted,
          &PrefetchStats::layers_read, &PrefetchStats::layers_ready}) {
      change.*count -= before.*count;
    }
    return change;
  }
};

}  // namespace karez
