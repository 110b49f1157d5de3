// The API of `karez route`: what it answers itself, and what the nodes answer.
//
// Thread: the HttpHandler calls come from I/O threads; the shutdown calls from any thread.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "route/node_table.h"
#include "route/route_metrics.h"
#include "route/route_run.h"
#include "server/api_routes.h"
#include "server/http_types.h"

namespace karez {

struct RouteOptions {
  AccessRules access;
  std::chrono::milliseconds connect_timeout{2000};
  std::chrono::milliseconds node_timeout{30'000};
};

class RouteService final : public HttpHandler {
 public:
  // nodes: must outlive the service.
  RouteService(RouteOptions options, NodeTable& nodes);
  ~RouteService() override;

  // New requests for text get 503; running ones go on.
  void stop_taking_requests() { draining_ = true; }
  // Running ones are ended and their clients told.
  void cut() { cut_ = true; }
  RouteMetrics& metrics() { return metrics_; }

  std::optional<HttpResponse> reject(const HttpRequest& head) override;
  asio::awaitable<void> handle(HttpRequest request, HttpExchange& exchange) override;
  HttpResponse protocol_error(int status, std::string message) override;

 private:
  HttpResponse error_response(const HttpRequest& request, const ApiError& error) const;
  HttpResponse own_route(const RouteMatch& match, const HttpRequest& request) const;
  std::string health_json(bool is_well, bool with_nodes) const;
  RouteContext context_for(const HttpRequest& request);
  asio::awaitable<RouteOutcome> generate(HttpRequest request, HttpExchange& exchange);

  const RouteOptions options_;
  NodeTable& nodes_;
  RouteMetrics metrics_;
  // For reading bodies, which would hold up an I/O thread.
  asio::thread_pool workers_{1};
  std::atomic<bool> draining_{false};
  std::atomic<bool> cut_{false};
};

}  // namespace karez
