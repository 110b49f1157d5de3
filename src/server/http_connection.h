// One client connection, plain or TLS: reads requests, has them answered, one after the other.
//
// Thread: everything on the I/O thread of its socket.
// Owns: its socket. The coroutine run() owns the connection.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <memory>
#include <unordered_set>

#include "server/asio.h"
#include "server/http_server.h"

namespace karez {

class HttpConnection;

// What the connections of one I/O thread share.
struct HttpLane {
  const HttpOptions& options;
  HttpHandler& handler;
  asio::ssl::context* tls = nullptr;  // nullptr: plain
  std::unordered_set<HttpConnection*> connections;
  bool stopping = false;
};

class HttpConnection {
 public:
  virtual ~HttpConnection() = default;
  // Closes the socket if no request is being received or answered.
  virtual void close_if_idle() = 0;
  virtual void close_now() = 0;
};

// Serves the socket until it ends.
asio::awaitable<void> serve_connection(asio::ip::tcp::socket socket, HttpLane& lane);

}  // namespace karez
