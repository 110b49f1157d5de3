// Accepts connections and runs HTTP/1.1 on them: limits, time-outs, TLS, keep-alive, streams.
//
// Knows no routes. A few I/O threads, each with its own connections; nothing blocks in them.
// Every wait has a deadline: for the first byte of a request (idle), its header, its body, and for
// the client to take what is written.
// Thread: start(), stop_accepting() and join() from one thread. The handler is called on I/O
// threads and must outlive the server.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "server/http_types.h"

namespace karez {

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8080;  // 0: any free one
  int io_threads = 2;
  std::string ssl_key_file;  // both or none
  std::string ssl_cert_file;
  std::vector<std::string> kept_headers;  // names of request headers for HttpRequest::headers
  std::size_t max_header_bytes = 16 * 1024;
  std::size_t max_body_bytes = 8 * 1024 * 1024;
  std::size_t max_connections = 16 * 1024;
  std::chrono::milliseconds idle_timeout{120'000};
  std::chrono::milliseconds header_timeout{10'000};
  std::chrono::milliseconds body_timeout{60'000};
  std::chrono::milliseconds write_timeout{60'000};
};

// "http://127.0.0.1:8080", of a server that listens on this port.
std::string url_of(const HttpOptions& options, int port);

class HttpServer {
 public:
  // Listens when it returns.
  // Fails: kUnavailable if the address is in use or not ours; kInvalidArgument for a host that is
  // no address or unusable TLS files.
  static Expected<std::unique_ptr<HttpServer>> start(const HttpOptions& options,
                                                     HttpHandler& handler);
  // As close_now() and join().
  ~HttpServer();

  int port() const;
  // No new connections; idle ones are closed, the others after the exchange they are in.
  void stop_accepting();
  // Waits until no connection is left, at most so long. False: some are left.
  bool wait_until_idle(std::chrono::milliseconds limit);
  // How a server ends: no new connections; what runs ends until the deadline; then cut() is called,
  // which tells the clients, and every connection is closed. True: nothing was cut.
  bool shut_down(std::chrono::milliseconds deadline, const std::function<void()>& cut);
  // Ends every connection and the threads.
  void close_now();

  std::size_t connections() const;

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace karez
