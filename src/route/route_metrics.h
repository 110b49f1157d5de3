// What a router counts, and its page for GET /metrics.
//
// Names, units and formulas: docs/metrics.md.
// Thread: every call from any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "route/node_table.h"

namespace karez {

// How a request for text ended.
enum class RouteOutcome {
  kAnswered,    // a node's answer was passed on to its end, whatever its status
  kRefused,     // it was wrong, or the router is shutting down
  kNoNode,      // no healthy node
  kNodeFailed,  // a node was lost
  kClientLeft,
  kCut,  // at shutdown
};
constexpr std::size_t kNumRouteOutcomes = 6;
std::string_view to_string(RouteOutcome outcome);

class RouteMetrics {
 public:
  // connections: open ones now.
  void set_connections(std::function<std::size_t()> connections);

  void count_outcome(RouteOutcome outcome) { ++outcomes_[static_cast<std::size_t>(outcome)]; }
  // A request went to a second node because the first one could not take it.
  void count_retry() { ++retries_; }
  // A producer has handed its KV over after so long.
  void count_hand_over(double seconds);
  // A consumer was to prefill for itself.
  void count_alone() { ++alone_; }

  // Prometheus text format.
  std::string page(const NodeTable& nodes) const;

 private:
  std::array<std::atomic<std::int64_t>, kNumRouteOutcomes> outcomes_{};
  std::atomic<std::int64_t> retries_{0};
  std::atomic<std::int64_t> hand_overs_{0};
  std::atomic<std::int64_t> hand_over_microseconds_{0};
  std::atomic<std::int64_t> alone_{0};
  mutable std::mutex mutex_;  // of the function
  std::function<std::size_t()> connections_;
};

}  // namespace karez
