// One HTTP request to a node over a connection of its own: sent, answered bit by bit, closed.
//
// Names are not looked up here (node_address.h): a call that finds no address known fails at once.
// A connection a request: its end tells the node that nobody waits for the answer any more. Knows
// no routes and no JSON.
// Thread: everything on the executor's thread, which is one.
// Owns: its socket.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"
#include "route/node_address.h"
#include "server/asio.h"
#include "server/http_types.h"

namespace karez {

struct NodeRequest {
  std::string method = "POST";
  std::string target;  // path and query, after the node's base path
  std::string body;
  HttpHeaders headers;
};

struct NodeAnswer {
  int status = 0;
  std::string content_type;
  HttpHeaders headers;                  // those for the client: nothing of the connection
  std::optional<std::uint64_t> length;  // of the body, if the node said so
};

struct NodeDeadlines {
  std::chrono::milliseconds connect{2000};
  // For each wait for the node after it has the request. Zero: none.
  std::chrono::milliseconds answer{0};
};

class NodeCall {
 public:
  // address: must outlive the call.
  NodeCall(asio::any_io_executor executor, const NodeAddress& address,
           const NodeDeadlines& deadlines);

  // Connects, sends, and waits for the header of the answer.
  // Fails: kUnavailable if no connection could be made, so that the node knows nothing of the
  // request; kIoError for everything later; kCancelled after cancel().
  asio::awaitable<Expected<NodeAnswer>> send(NodeRequest request);
  // Some bytes of the body, as they come; empty: it has ended.
  // Fails: kIoError if it was cut off; kCancelled.
  asio::awaitable<Expected<std::string>> read_some();
  // The whole body. Fails: as read_some(); kIoError if it is longer than max_bytes.
  asio::awaitable<Expected<std::string>> read_all(std::size_t max_bytes);

  // Ends the wait that is going on, and closes the connection.
  void cancel();

 private:
  asio::awaitable<Expected<void>> connect();
  void limit(std::chrono::milliseconds time);
  Status status_of(const boost::system::error_code& error) const;

  const NodeAddress& address_;
  const NodeDeadlines deadlines_;
  boost::beast::tcp_stream stream_;
  boost::beast::flat_buffer buffer_;
  boost::beast::http::response_parser<boost::beast::http::buffer_body> parser_;
  bool is_cancelled_ = false;
};

}  // namespace karez
