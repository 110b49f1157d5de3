// Spreads the compression of many sequences over the steps of an engine.
//
// Each turn, between two steps, does so many layers that every window would be ready in time if all
// turns did as many (earliest deadline first). A sequence that has come to the publication of a
// window and finds it unfinished waits: its rows are computed after. So which sequences are
// compressed in which turn depends on the company, and what they are compressed to does not.
//
// Thread: the engine's. Borrows: the compressor.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "engine/window_compressor.h"
#include "sched/scheduler.h"

namespace karez {

// Layers to do in this turn. phases: of all windows under way.
int units_of_turn(std::span<const WindowCompressor::Phase> phases);

class CompressionTurns {
 public:
  explicit CompressionTurns(WindowCompressor& compressor) : compressor_(compressor) {}

  // Before schedule(). Returns the choices that were ended because their KV was lost too often.
  // may_recompute: of a request whose KV could not be read; the caller cancels one that may not.
  std::vector<EndedSequence> run(Scheduler& scheduler,
                                 const std::function<bool(RequestId)>& may_recompute);

 private:
  void publish_early(Scheduler& scheduler) const;

  WindowCompressor& compressor_;
};

}  // namespace karez
