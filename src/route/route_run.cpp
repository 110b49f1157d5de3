#include "route/route_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "route/exchange_watch.h"
#include "server/api_error.h"

namespace karez {
namespace {

// An answer of known length up to this is read before its status is passed on, so that it keeps
// its length and is either complete or an error.
constexpr std::uint64_t kWholeBytes = 1 << 20;
// What a producer says is a few hundred bytes, or an error.
constexpr std::size_t kMaxPrefillAnswerBytes = 1 << 20;
// Of a line of events.
constexpr std::size_t kMaxHeldBytes = 64 * 1024;
constexpr int kRetrySeconds = 1;

class InFlight {
 public:
  InFlight(NodeTable& nodes, NodeId node) : nodes_(nodes), node_(node) {
    nodes_.begin_request(node_);
  }
  ~InFlight() { nodes_.end_request(node_); }
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;

 private:
  NodeTable& nodes_;
  NodeId node_;
};

HttpResponse response_of(const ApiError& error) {
  HttpResponse response;
  response.status = error.http_status;
  response.body = error.to_json();
  if (error.retry_after_seconds) {
    response.headers.emplace_back("Retry-After", std::to_string(*error.retry_after_seconds));
  }
  return response;
}

HttpResponse response_of(NodeAnswer answer) {
  HttpResponse response;
  response.status = answer.status;
  response.content_type = std::move(answer.content_type);
  response.headers = std::move(answer.headers);
  return response;
}

ApiError unavailable(std::string message, std::string code) {
  ApiError error = ApiError::from_status(Status(StatusCode::kUnavailable, std::move(message)));
  error.code = std::move(code);
  error.retry_after_seconds = kRetrySeconds;
  return error;
}

// Clients are not told the addresses of nodes; the log has them.
ApiError node_failed(NodeKind kind) {
  return {.http_status = 502,
          .message = fmt::format("a {} node failed; this answer is not complete", to_string(kind)),
          .type = "server_error",
          .param = {},
          .code = "node_failed",
          .retry_after_seconds = kRetrySeconds};
}

ApiError shutting_down() {
  return unavailable("the router is shutting down; this answer is not complete", "overloaded");
}

}  // namespace

bool RouteRun::must_end(NodeId node) {
  if (context_.cut) {
    over_ = Over::kCut;
  } else if (exchange_.client_gone()) {
    over_ = Over::kClientLeft;
  } else if (context_.nodes.out_for(node, NodeTable::Clock::now()) > context_.node_timeout) {
    over_ = Over::kNodeSilent;
  }
  return over_ != Over::kNo;
}

void RouteRun::note_failure(NodeId node, const Status& status) {
  const std::string problem =
      over_ == Over::kNodeSilent ? std::string("answers no health checks") : status.message();
  over_ = Over::kNo;
  std::fprintf(stderr, "karez: %s node %s: %s\n",
               std::string(to_string(context_.nodes.kind(node))).c_str(),
               context_.nodes.url(node).text().c_str(), problem.c_str());
  context_.nodes.failure(node, problem, NodeTable::Clock::now());
}

std::optional<NodeId> RouteRun::next_node(NodeKind kind, std::optional<NodeId> except) {
  return is_any_kind_ ? context_.nodes.any(except) : context_.nodes.least_loaded(kind, except);
}

asio::awaitable<RouteOutcome> RouteRun::respond(HttpResponse response, RouteOutcome outcome) {
  for (const auto& header : context_.client_headers) {
    response.headers.push_back(header);
  }
  const bool sent = co_await exchange_.respond(std::move(response));
  co_return sent ? outcome : RouteOutcome::kClientLeft;
}

asio::awaitable<RouteOutcome> RouteRun::generate(std::string target, RoutedRequest request) {
  Prefill first;
  if (!request.prefill_body.empty()) {
    first = co_await prefill(target, request);
  }
  if (over_ == Over::kClientLeft) {
    co_return RouteOutcome::kClientLeft;
  }
  if (over_ == Over::kCut) {
    HttpResponse response = response_of(shutting_down());
    co_return co_await respond(std::move(response), RouteOutcome::kCut);
  }
  if (first.response) {
    co_return co_await respond(std::move(*first.response), RouteOutcome::kAnswered);
  }
  const bool is_alone = first.transfer.is_null();
  if (is_alone) {
    context_.metrics.count_alone();
  }
  // A consumer on its own has a prefix cache to be met again.
  const auto node = is_alone ? context_.nodes.by_prefix(NodeKind::kDecode, request.prefix_hash)
                             : context_.nodes.least_loaded(NodeKind::kDecode);
  NodeRequest second;
  second.target = std::move(target);
  second.body = decode_body(request, first.transfer);
  second.headers = context_.node_headers;
  co_return co_await pass_on(node, NodeKind::kDecode, std::move(second));
}

asio::awaitable<RouteRun::Prefill> RouteRun::prefill(const std::string& target,
                                                     const RoutedRequest& request) {
  auto node = context_.nodes.by_prefix(NodeKind::kPrefill, request.prefix_hash);
  NodeRequest first;
  first.target = target;
  first.headers = context_.node_headers;
  if (node) {
    first.body = request.prefill_body;
  }
  for (int attempt = 0; node && attempt < 2; ++attempt) {
    if (attempt > 0) {
      context_.metrics.count_retry();
    }
    NodeRequest copy = first;
    auto done = co_await prefill_on(*node, std::move(copy));
    if (done) {
      co_return std::move(*done);
    }
    if (is_over()) {
      break;
    }
    node = context_.nodes.by_prefix(NodeKind::kPrefill, request.prefix_hash, node);
  }
  co_return Prefill{};
}

asio::awaitable<std::optional<RouteRun::Prefill>> RouteRun::prefill_on(NodeId node,
                                                                       NodeRequest request) {
  const auto start = NodeTable::Clock::now();
  const InFlight counted(context_.nodes, node);
  NodeCall call(exchange_.executor(), context_.nodes.address(node), deadlines());
  const ExchangeWatch watch(exchange_.executor(), call, [this, node] { return must_end(node); });
  auto answer = co_await call.send(std::move(request));
  Expected<std::string> body = std::string();
  if (answer) {
    body = co_await call.read_all(kMaxPrefillAnswerBytes);
  }
  if (is_over()) {
    co_return std::nullopt;
  }
  if (!answer || !body) {
    note_failure(node, answer ? body.error() : answer.error());
    co_return std::nullopt;
  }
  Prefill result;
  if (could_not_keep_kv(answer->status, *body)) {
    co_return result;  // the consumer does both
  }
  if (answer->status != 200) {
    result.response = response_of(std::move(*answer));
    result.response->body = std::move(*body);
    co_return result;
  }
  result.transfer = transfer_of_answer(*body);
  if (!result.transfer.is_null()) {
    const std::chrono::duration<double> seconds = NodeTable::Clock::now() - start;
    context_.metrics.count_hand_over(seconds.count());
  }
  co_return result;
}

asio::awaitable<RouteOutcome> RouteRun::forward(NodeRequest request) {
  is_any_kind_ = true;
  request.headers = context_.node_headers;
  const auto node = context_.nodes.any();
  co_return co_await pass_on(node, NodeKind::kDecode, std::move(request));
}

asio::awaitable<RouteOutcome> RouteRun::pass_on(std::optional<NodeId> node, NodeKind kind,
                                                NodeRequest request) {
  if (!node) {
    HttpResponse response = response_of(unavailable(
        fmt::format("no {} node is healthy; GET /health lists them", to_string(kind)), "no_node"));
    co_return co_await respond(std::move(response), RouteOutcome::kNoNode);
  }
  NodeRequest copy = request;
  auto outcome = co_await pass_on_from(*node, std::move(copy));
  if (outcome) {
    co_return *outcome;
  }
  const auto second = next_node(kind, node);
  if (second) {
    node = second;
    context_.metrics.count_retry();
    outcome = co_await pass_on_from(*second, std::move(request));
  }
  if (outcome) {
    co_return *outcome;
  }
  HttpResponse response = response_of(node_failed(context_.nodes.kind(*node)));
  co_return co_await respond(std::move(response), RouteOutcome::kNodeFailed);
}

asio::awaitable<std::optional<RouteOutcome>> RouteRun::pass_on_from(NodeId node,
                                                                    NodeRequest request) {
  const InFlight counted(context_.nodes, node);
  NodeCall call(exchange_.executor(), context_.nodes.address(node), deadlines());
  const ExchangeWatch watch(exchange_.executor(), call, [this, node] { return must_end(node); });
  auto answer = co_await call.send(std::move(request));
  if (answer) {
    co_return co_await relay(node, call, std::move(*answer));
  }
  if (!is_over() && answer.error().code() == StatusCode::kUnavailable) {
    note_failure(node, answer.error());
    co_return std::nullopt;
  }
  co_return co_await end_with_failure(node, answer.error());
}

asio::awaitable<RouteOutcome> RouteRun::relay(NodeId node, NodeCall& call, NodeAnswer answer) {
  const auto length = answer.length;
  HttpResponse response = response_of(std::move(answer));
  const bool has_no_body = response.status == 204 || response.status == 304;
  if (!has_no_body && !(length && *length <= kWholeBytes)) {
    co_return co_await relay_stream(node, call, std::move(response));
  }
  if (!has_no_body) {
    auto body = co_await call.read_all(kWholeBytes);
    if (!body) {
      co_return co_await end_with_failure(node, body.error());
    }
    response.body = std::move(*body);
  }
  co_return co_await respond(std::move(response), RouteOutcome::kAnswered);
}

asio::awaitable<RouteOutcome> RouteRun::relay_stream(NodeId node, NodeCall& call,
                                                     HttpResponse header) {
  is_event_stream_ = header.content_type.starts_with("text/event-stream");
  for (const auto& own : context_.client_headers) {
    header.headers.push_back(own);
  }
  bool is_sent = co_await exchange_.begin_stream(std::move(header));
  is_stream_ = true;
  while (is_sent) {
    auto part = co_await call.read_some();
    if (!part) {
      co_return co_await end_with_failure(node, part.error());
    }
    const bool is_end = part->empty();
    std::string data = is_end ? std::exchange(held_, {}) : whole_lines(std::move(*part));
    is_sent = co_await exchange_.write(std::move(data));
    if (is_end && is_sent) {
      co_await exchange_.end_stream();
      co_return RouteOutcome::kAnswered;
    }
  }
  co_return RouteOutcome::kClientLeft;
}

std::string RouteRun::whole_lines(std::string part) {
  if (!is_event_stream_) {
    return part;
  }
  held_ += part;
  const std::size_t line_end = held_.rfind('\n');
  if (line_end == std::string::npos) {
    return held_.size() > kMaxHeldBytes ? std::exchange(held_, {}) : std::string();
  }
  std::string lines = held_.substr(0, line_end + 1);
  held_.erase(0, line_end + 1);
  return lines;
}

asio::awaitable<RouteOutcome> RouteRun::end_with_failure(NodeId node, const Status& status) {
  if (over_ == Over::kClientLeft) {
    exchange_.close_after();
    co_return RouteOutcome::kClientLeft;
  }
  const bool is_cut = over_ == Over::kCut;
  if (!is_cut) {
    note_failure(node, status);
  }
  const RouteOutcome outcome = is_cut ? RouteOutcome::kCut : RouteOutcome::kNodeFailed;
  const ApiError error = is_cut ? shutting_down() : node_failed(context_.nodes.kind(node));
  if (!is_stream_) {
    HttpResponse response = response_of(error);
    co_return co_await respond(std::move(response), outcome);
  }
  if (!is_event_stream_) {
    exchange_.abandon();  // an end of the stream would look like the end of the answer
    co_return outcome;
  }
  exchange_.close_after();
  // The node may have been lost in the middle of an event; another empty line does no harm.
  std::string last = "\ndata: " + error.to_json() + "\n\n";
  const bool sent = co_await exchange_.write(std::move(last));
  if (sent) {
    co_await exchange_.end_stream();
  }
  co_return outcome;
}

}  // namespace karez
