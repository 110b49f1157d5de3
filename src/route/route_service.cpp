#include "route/route_service.h"

#include <utility>

#include "server/on_worker.h"

namespace karez {
namespace {

constexpr int kHealthRetrySeconds = 2;

}  // namespace

RouteService::RouteService(RouteOptions options, NodeTable& nodes)
    : options_(std::move(options)), nodes_(nodes) {}
RouteService::~RouteService() { workers_.join(); }

HttpResponse RouteService::error_response(const HttpRequest& request, const ApiError& error) const {
  return make_error_response(request, error, options_.access);
}

HttpResponse RouteService::protocol_error(int status, std::string message) {
  return make_protocol_error(status, std::move(message));
}

std::optional<HttpResponse> RouteService::reject(const HttpRequest& head) {
  const auto match = match_route(head, options_.access);
  if (!match) {
    return error_response(head, match.error());
  }
  return std::nullopt;
}

std::string RouteService::health_json(bool is_well, bool with_nodes) const {
  Json body;
  if (is_well) {
    body["status"] = "ok";
  } else {
    body["error"] = {{"code", 503},
                     {"message", draining_ ? "Shutting down" : "No decode node is healthy"},
                     {"type", "unavailable_error"}};
  }
  if (with_nodes) {
    body["nodes"] = Json::array();
    for (const NodeState& node : nodes_.states()) {
      body["nodes"].push_back(
          {{"url", node.url.text()},
           {"role", to_string(node.kind)},
           {"healthy", node.is_healthy},
           {"requests_in_flight", node.in_flight},
           {"problem", node.problem.empty() ? Json(nullptr) : Json(node.problem)}});
    }
  }
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

HttpResponse RouteService::own_route(const RouteMatch& match, const HttpRequest& request) const {
  HttpResponse response;
  response.headers = cors_headers(request, options_.access);
  if (match.route == Route::kPreflight) {
    response.status = 204;
  } else if (match.route == Route::kMetrics) {
    response.content_type = "text/plain; version=0.0.4; charset=utf-8";
    response.body = metrics_.page(nodes_);
  } else {
    const bool is_well = !draining_ && nodes_.any_healthy(NodeKind::kDecode);
    // Everyone may ask for the health, but the nodes' addresses are for those with a key.
    response.body = health_json(is_well, options_.access.api_keys.empty() || match.key_index >= 0);
    if (!is_well) {
      response.status = 503;
      response.headers.emplace_back("Retry-After", std::to_string(kHealthRetrySeconds));
    }
  }
  return response;
}

RouteContext RouteService::context_for(const HttpRequest& request) {
  RouteContext context{nodes_,
                       metrics_,
                       cut_,
                       options_.connect_timeout,
                       options_.node_timeout,
                       cors_headers(request, options_.access),
                       request.headers};
  if (!request.authorization.empty()) {
    context.node_headers.emplace_back("Authorization", request.authorization);
  }
  return context;
}

asio::awaitable<void> RouteService::handle(HttpRequest request, HttpExchange& exchange) {
  const auto match = match_route(request, options_.access);
  if (!match) {
    HttpResponse rejection = error_response(request, match.error());
    co_await exchange.respond(std::move(rejection));
    co_return;
  }
  switch (match->route) {
    case Route::kPreflight:
    case Route::kHealth:
    case Route::kMetrics: {
      HttpResponse response = own_route(*match, request);
      co_await exchange.respond(std::move(response));
      co_return;
    }
    case Route::kChatCompletions:
    case Route::kCompletions: {
      const RouteOutcome outcome = co_await generate(std::move(request), exchange);
      metrics_.count_outcome(outcome);
      co_return;
    }
    default:
      break;
  }
  RouteRun run(context_for(request), exchange);
  NodeRequest forwarded;
  // The connection leaves the body out where HEAD asks for that.
  forwarded.method = request.method == "HEAD" ? "GET" : request.method;
  forwarded.target = std::move(request.target);
  forwarded.body = std::move(request.body);
  co_await run.forward(std::move(forwarded));
}

asio::awaitable<RouteOutcome> RouteService::generate(HttpRequest request, HttpExchange& exchange) {
  if (draining_) {
    HttpResponse response = error_response(
        request,
        ApiError::from_status(Status(StatusCode::kUnavailable, "the router is shutting down")));
    co_await exchange.respond(std::move(response));
    co_return RouteOutcome::kRefused;
  }
  auto work = [body = std::move(request.body), key = request.authorization]() mutable {
    return read_routed_request(std::move(body), key);
  };
  ApiResult<RoutedRequest> read =
      co_await on_worker(workers_, exchange.executor(), std::move(work));
  if (!read) {
    HttpResponse response = error_response(request, read.error());
    co_await exchange.respond(std::move(response));
    co_return RouteOutcome::kRefused;
  }
  RouteRun run(context_for(request), exchange);
  co_return co_await run.generate(std::move(request.target), std::move(*read));
}

}  // namespace karez
