// The router as the program uses it: listens, watches its nodes, ends.
//
// Thread: one caller.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "route/health_checker.h"
#include "route/node_table.h"
#include "route/route_service.h"
#include "server/http_server.h"

namespace karez {

struct RouterOptions {
  HttpOptions http;
  RouteOptions route;
  HealthCheckOptions health;
  std::vector<NodeUrl> prefill;  // none: decode nodes prefill for themselves
  std::vector<NodeUrl> decode;

  // Fails: kInvalidArgument naming the flag: no decode node, a node twice under one flag.
  Expected<void> validate() const;
};

class Router {
 public:
  // Listens when it returns, and has asked every node for its health once, if they answer soon.
  // Fails: as RouterOptions::validate() and HttpServer::start().
  static Expected<std::unique_ptr<Router>> start(RouterOptions options);
  ~Router();

  // "http://127.0.0.1:8080"
  std::string url() const;
  int port() const { return http_->port(); }
  std::vector<NodeState> nodes() const { return nodes_->states(); }

  // Takes no more requests, lets the running ones end until the deadline, then cuts them and tells
  // their clients. Returns when every connection is closed. True: nothing was cut.
  bool shut_down(std::chrono::milliseconds deadline);

 private:
  Router() = default;

  RouterOptions options_;
  std::unique_ptr<NodeTable> nodes_;
  std::unique_ptr<RouteService> service_;
  std::unique_ptr<HealthChecker> checker_;
  std::unique_ptr<HttpServer> http_;
};

}  // namespace karez
