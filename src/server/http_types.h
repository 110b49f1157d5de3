// HTTP as the rest of the server sees it: a request, a response, and the exchange between them.
//
// Interfaces, so that only http_*.cpp know the HTTP library.
// Thread: all coroutines of a connection run on its I/O thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/asio.h"

namespace karez {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;
  std::string target;  // path and query as sent
  std::string host;
  std::string origin;             // empty: no Origin header
  std::string authorization;      // the header's value
  std::string preflight_headers;  // likewise of Access-Control-Request-Headers
  HttpHeaders headers;            // of HttpOptions::kept_headers, those that it has
  std::string body;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  HttpHeaders headers;
};

// One request being answered. Either respond() once, or begin_stream(), write()..., end_stream().
// False: the client is gone, or did not read for too long.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;

  virtual asio::awaitable<bool> respond(HttpResponse response) = 0;
  // Sends the header of an answer whose length is not known yet; its body is not used.
  virtual asio::awaitable<bool> begin_stream(HttpResponse response) = 0;
  virtual asio::awaitable<bool> write(std::string data) = 0;
  virtual asio::awaitable<bool> end_stream() = 0;
  // Ends a write() that waits for the client, which then returns false, and closes the connection
  // after this exchange. Called on executor().
  virtual void abandon() = 0;
  // The connection is closed after this exchange instead of waiting for the next request.
  virtual void close_after() = 0;

  // Whether the client has closed its side. Cheap: one system call. A client that has shut down
  // only its sending side counts as gone.
  virtual bool client_gone() const = 0;
  virtual asio::any_io_executor executor() = 0;
};

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;

  // Looks at a request whose body has not been read yet. A response: it is sent, the body is not
  // read and handle() is not called.
  virtual std::optional<HttpResponse> reject(const HttpRequest& head) = 0;
  virtual asio::awaitable<void> handle(HttpRequest request, HttpExchange& exchange) = 0;
  // The response for a fault that the connection itself found (400, 408, 413, 431).
  virtual HttpResponse protocol_error(int status, std::string message) = 0;
};

}  // namespace karez
