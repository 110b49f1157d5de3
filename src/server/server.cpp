#include "server/server.h"

#include <thread>
#include <utility>

#include "base/ip_address.h"

namespace karez {

Expected<std::unique_ptr<Server>> Server::start(ServerOptions options) {
  std::unique_ptr<RequestLog> log;
  if (!options.api.log_jsonl.empty()) {
    auto opened = RequestLog::open(options.api.log_jsonl);
    if (!opened) {
      return fail(std::move(opened.error()));
    }
    log = std::move(*opened);
  }
  options.api.access.loopback_only = names_loopback(options.http.host);
  std::unique_ptr<Server> server(new Server());
  server->options_ = options;
  server->service_ = std::make_unique<ApiService>(options.api, std::move(log));
  auto http = HttpServer::start(options.http, *server->service_);
  if (!http) {
    return fail(std::move(http.error()));
  }
  server->http_ = std::move(*http);
  server->service_->metrics().set_connections(
      [http_server = server->http_.get()] { return http_server->connections(); });
  return server;
}

Server::~Server() = default;

void Server::set_progress(double share, std::string phase) {
  service_->set_progress(share, std::move(phase));
}

void Server::set_backend(ServerBackend backend) { service_->set_backend(std::move(backend)); }

std::string Server::url() const { return url_of(options_.http, http_->port()); }

bool Server::shut_down(std::chrono::milliseconds deadline) {
  service_->stop_taking_requests();
  return http_->shut_down(deadline, [this] { service_->cut(); });
}

}  // namespace karez
