// One client's request on its way through the nodes: the two steps, or one node's answer passed on.
//
// Answers are not gathered: each piece is written to the client before the next one is read from
// the node, so that a slow client slows its node and nothing else. A node that refuses the
// connection is replaced once; one that is lost later ends the answer with an error.
// Thread: coroutines of the connection's I/O thread.
#pragma once

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "route/node_call.h"
#include "route/node_table.h"
#include "route/route_metrics.h"
#include "route/two_step.h"
#include "server/http_types.h"

namespace karez {

// What all runs of a router share. Outlives them.
struct RouteContext {
  NodeTable& nodes;
  RouteMetrics& metrics;
  // Set when the router must end now.
  const std::atomic<bool>& cut;
  std::chrono::milliseconds connect_timeout{2000};
  // A node that answers no check for so long is not waited for.
  std::chrono::milliseconds node_timeout{30'000};
  HttpHeaders client_headers;  // for every response to this client
  HttpHeaders node_headers;    // for every request to a node
};

class RouteRun {
 public:
  RouteRun(RouteContext context, HttpExchange& exchange)
      : context_(std::move(context)), exchange_(exchange) {}

  // A request for text.
  asio::awaitable<RouteOutcome> generate(std::string target, RoutedRequest request);
  // Any other request: one healthy node answers.
  asio::awaitable<RouteOutcome> forward(NodeRequest request);

 private:
  enum class Over { kNo, kClientLeft, kCut, kNodeSilent };
  struct Prefill {
    Json transfer;                         // null: the consumer is on its own
    std::optional<HttpResponse> response;  // of a producer that refused: for the client
  };

  asio::awaitable<Prefill> prefill(const std::string& target, const RoutedRequest& request);
  // One attempt. Nothing: the node failed, or is_over().
  asio::awaitable<std::optional<Prefill>> prefill_on(NodeId node, NodeRequest request);
  // Sends to the node, else to the next one; passes the answer on.
  asio::awaitable<RouteOutcome> pass_on(std::optional<NodeId> node, NodeKind kind,
                                        NodeRequest request);
  // Nothing: the node could not be reached, and the client knows of nothing yet.
  asio::awaitable<std::optional<RouteOutcome>> pass_on_from(NodeId node, NodeRequest request);
  asio::awaitable<RouteOutcome> relay(NodeId node, NodeCall& call, NodeAnswer answer);
  asio::awaitable<RouteOutcome> relay_stream(NodeId node, NodeCall& call, HttpResponse header);
  // What can be sent of an event stream, so that a client never gets half a line before an error.
  std::string whole_lines(std::string part);
  asio::awaitable<RouteOutcome> respond(HttpResponse response, RouteOutcome outcome);
  // The answer cannot be completed: says so, as a status or in the stream.
  asio::awaitable<RouteOutcome> end_with_failure(NodeId node, const Status& status);

  std::optional<NodeId> next_node(NodeKind kind, std::optional<NodeId> except);
  NodeDeadlines deadlines() const { return {.connect = context_.connect_timeout}; }
  // Whether the call to this node is to end; remembers why.
  bool must_end(NodeId node);
  bool is_over() const { return over_ == Over::kClientLeft || over_ == Over::kCut; }
  void note_failure(NodeId node, const Status& status);

  RouteContext context_;
  HttpExchange& exchange_;
  Over over_ = Over::kNo;
  bool is_any_kind_ = false;      // forward(): a node of the other kind does as well
  bool is_stream_ = false;        // its header is sent
  bool is_event_stream_ = false;  // of these, one of events
  std::string held_;              // the beginning of an event's line
};

}  // namespace karez
