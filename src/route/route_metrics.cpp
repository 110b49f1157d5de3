#include "route/route_metrics.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace karez {
namespace {

std::string head(std::string_view name, std::string_view type, std::string_view help) {
  return fmt::format("# HELP {0} {2}\n# TYPE {0} {1}\n", name, type, help);
}

template <typename Value>
std::string single(std::string_view name, std::string_view type, std::string_view help,
                   Value value) {
  return head(name, type, help) + fmt::format("{} {}\n", name, value);
}

// A line for each node. A parsed URL has no character that a label must escape.
template <typename Value>
std::string of_nodes(std::string_view name, std::string_view type, std::string_view help,
                     const std::vector<NodeState>& nodes, Value NodeState::*value) {
  std::string text = head(name, type, help);
  for (const NodeState& node : nodes) {
    text += fmt::format("{}{{node=\"{}\",role=\"{}\"}} {}\n", name, node.url.text(),
                        to_string(node.kind), static_cast<std::int64_t>(node.*value));
  }
  return text;
}

}  // namespace

std::string_view to_string(RouteOutcome outcome) {
  switch (outcome) {
    case RouteOutcome::kAnswered:
      return "answered";
    case RouteOutcome::kRefused:
      return "refused";
    case RouteOutcome::kNoNode:
      return "no_node";
    case RouteOutcome::kNodeFailed:
      return "node_failed";
    case RouteOutcome::kClientLeft:
      return "client_left";
    case RouteOutcome::kCut:
      break;
  }
  return "cut";
}

void RouteMetrics::set_connections(std::function<std::size_t()> connections) {
  const std::lock_guard lock(mutex_);
  connections_ = std::move(connections);
}

void RouteMetrics::count_hand_over(double seconds) {
  ++hand_overs_;
  hand_over_microseconds_ += static_cast<std::int64_t>(seconds * 1e6);
}

std::string RouteMetrics::page(const NodeTable& nodes) const {
  const std::vector<NodeState> states = nodes.states();
  std::string text = head("karez_route_requests_total", "counter", "Requests for text by outcome.");
  for (std::size_t i = 0; i < kNumRouteOutcomes; ++i) {
    text += fmt::format("karez_route_requests_total{{outcome=\"{}\"}} {}\n",
                        to_string(static_cast<RouteOutcome>(i)), outcomes_[i].load());
  }
  text += single("karez_route_hand_overs_total", "counter",
                 "Prompts that a prefill node has handed over.", hand_overs_.load());
  text += single("karez_route_prefill_seconds_total", "counter",
                 "Seconds that requests waited for them.",
                 static_cast<double>(hand_over_microseconds_.load()) * 1e-6);
  text += single("karez_route_decode_alone_total", "counter",
                 "Requests that a decode node had to prefill for itself.", alone_.load());
  text += single("karez_route_retries_total", "counter",
                 "Requests that went to a second node because the first one could not take them.",
                 retries_.load());
  text += single("karez_route_prefix_spills_total", "counter",
                 "Prompts that went past the node of their beginning because it was too busy.",
                 nodes.spills());
  text += of_nodes("karez_route_node_up", "gauge", "Whether a node gets requests.", states,
                   &NodeState::is_healthy);
  text += of_nodes("karez_route_node_requests_in_flight", "gauge",
                   "Requests that a node is busy with.", states, &NodeState::in_flight);
  text += of_nodes("karez_route_node_requests_total", "counter", "Requests sent to a node.", states,
                   &NodeState::requests);
  text += of_nodes("karez_route_node_failures_total", "counter",
                   "Requests that a node did not answer, or not to the end.", states,
                   &NodeState::failures);
  const std::lock_guard lock(mutex_);
  text += single("karez_route_connections", "gauge", "Open connections of clients.",
                 connections_ ? connections_() : std::size_t{0});
  return text;
}

}  // namespace karez
