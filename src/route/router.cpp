#include "route/router.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/ip_address.h"

namespace karez {
namespace {

// For the first checks; nodes that are slower begin as out.
constexpr std::chrono::milliseconds kFirstRound{3000};

Expected<void> check_once(const char* flag, const std::vector<NodeUrl>& nodes) {
  for (auto node = nodes.begin(); node != nodes.end(); ++node) {
    if (std::find(nodes.begin(), node, *node) != node) {
      return fail(StatusCode::kInvalidArgument,
                  fmt::format("{} names {} twice, allowed is once", flag, node->text()));
    }
  }
  return {};
}

void print_news(NodeId, const NodeState& state) {
  std::fprintf(stderr, "karez: %s node %s %s%s\n", std::string(to_string(state.kind)).c_str(),
               state.url.text().c_str(),
               state.is_healthy ? "is healthy" : "is out: ", state.problem.c_str());
}

}  // namespace

Expected<void> RouterOptions::validate() const {
  if (decode.empty()) {
    return fail(StatusCode::kInvalidArgument,
                "--decode is missing: at least one node that answers is needed");
  }
  if (auto once = check_once("--prefill", prefill); !once) {
    return once;
  }
  return check_once("--decode", decode);
}

Expected<std::unique_ptr<Router>> Router::start(RouterOptions options) {
  if (auto valid = options.validate(); !valid) {
    return fail(std::move(valid.error()));
  }
  options.route.access.loopback_only = names_loopback(options.http.host);
  // What a node or its log can use. Others stay here: origins and hosts are checked here, and
  // answers must not be packed, because they are read.
  options.http.kept_headers = {"X-Request-Id", "traceparent", "tracestate", "User-Agent"};
  std::unique_ptr<Router> router(new Router());
  router->options_ = options;
  router->nodes_ = std::make_unique<NodeTable>(options.prefill, options.decode);
  router->service_ = std::make_unique<RouteService>(options.route, *router->nodes_);
  auto http = HttpServer::start(options.http, *router->service_);
  if (!http) {
    return fail(std::move(http.error()));
  }
  router->http_ = std::move(*http);
  router->service_->metrics().set_connections(
      [server = router->http_.get()] { return server->connections(); });
  router->checker_ = std::make_unique<HealthChecker>(options.health, *router->nodes_, print_news);
  router->checker_->wait_for_first_round(kFirstRound);
  return router;
}

// The connections end before what they use.
Router::~Router() { http_.reset(); }

std::string Router::url() const { return url_of(options_.http, http_->port()); }

bool Router::shut_down(std::chrono::milliseconds deadline) {
  service_->stop_taking_requests();
  return http_->shut_down(deadline, [this] { service_->cut(); });
}

}  // namespace karez
