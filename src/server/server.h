// The server as the program uses it: listens, answers, ends.
//
// Life: start() (answers 503 with the loading progress), set_backend(), shut_down().
// Thread: one caller; set_progress() from any thread.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "base/status.h"
#include "server/api_service.h"
#include "server/http_server.h"

namespace karez {

struct ServerOptions {
  HttpOptions http;
  ApiOptions api;
};

class Server {
 public:
  // Fails: as HttpServer::start(); kIoError for the log file.
  static Expected<std::unique_ptr<Server>> start(ServerOptions options);
  ~Server();

  void set_progress(double share, std::string phase);
  void set_backend(ServerBackend backend);
  // "http://127.0.0.1:8080"
  std::string url() const;
  int port() const { return http_->port(); }

  // Takes no more requests, lets the running ones end until the deadline, then cuts them and tells
  // their clients. Returns when every connection is closed. True: nothing was cut.
  bool shut_down(std::chrono::milliseconds deadline);

 private:
  Server() = default;

  ServerOptions options_;
  std::unique_ptr<ApiService> service_;
  std::unique_ptr<HttpServer> http_;
};

}  // namespace karez
