#include "route/node_call.h"

#include <fmt/format.h>

#include <limits>
#include <string_view>
#include <utility>

namespace karez {
namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::uint32_t kMaxHeaderBytes = 64 * 1024;
constexpr std::size_t kReadBytes = 16 * 1024;

auto token(error_code& error) { return asio::redirect_error(asio::use_awaitable, error); }

// Of the connection to the node, or set anew for the client.
bool is_for_client(http::field name) {
  switch (name) {
    case http::field::connection:
    case http::field::keep_alive:
    case http::field::transfer_encoding:
    case http::field::content_length:
    case http::field::content_type:
    case http::field::trailer:
    case http::field::te:
    case http::field::upgrade:
    case http::field::server:
    case http::field::vary:
    case http::field::access_control_allow_origin:
    case http::field::access_control_allow_methods:
    case http::field::access_control_allow_headers:
    case http::field::access_control_max_age:
      return false;
    default:
      return true;
  }
}

std::string text_of(beast::string_view view) { return {view.data(), view.size()}; }

}  // namespace

NodeCall::NodeCall(asio::any_io_executor executor, const NodeAddress& address,
                   const NodeDeadlines& deadlines)
    : address_(address), deadlines_(deadlines), stream_(executor) {
  parser_.header_limit(kMaxHeaderBytes);
  // To Beast 1.74 no limit is a limit of 0.
  parser_.body_limit(std::numeric_limits<std::uint64_t>::max());
}

void NodeCall::cancel() {
  is_cancelled_ = true;
  stream_.close();
}

void NodeCall::limit(std::chrono::milliseconds time) {
  if (time.count() == 0) {
    stream_.expires_never();
  } else {
    stream_.expires_after(time);
  }
}

Status NodeCall::status_of(const error_code& error) const {
  if (is_cancelled_) {
    return {StatusCode::kCancelled, "cancelled"};
  }
  if (error == beast::error::timeout) {
    return {StatusCode::kIoError, "did not answer in time"};
  }
  if (error == http::error::end_of_stream || error == http::error::partial_message ||
      error == asio::error::eof || error == asio::error::connection_reset) {
    return {StatusCode::kIoError, "closed the connection before its answer was complete"};
  }
  return {StatusCode::kIoError, error.message()};
}

asio::awaitable<Expected<void>> NodeCall::connect() {
  const auto endpoints = address_.endpoints();
  if (!endpoints) {
    co_return fail(StatusCode::kUnavailable, "cannot connect: " + endpoints.error().message());
  }
  error_code error;
  if (!is_cancelled_) {
    stream_.expires_after(deadlines_.connect);
    co_await stream_.async_connect(*endpoints, token(error));
  }
  if (error || is_cancelled_) {
    const Status status = status_of(error);
    co_return fail(is_cancelled_ ? status.code() : StatusCode::kUnavailable,
                   "cannot connect: " + status.message());
  }
  error_code ignored;
  stream_.socket().set_option(tcp::no_delay(true), ignored);
  stream_.socket().set_option(asio::socket_base::keep_alive(true), ignored);
  co_return Expected<void>();
}

asio::awaitable<Expected<NodeAnswer>> NodeCall::send(NodeRequest request) {
  auto connected = co_await connect();
  if (!connected) {
    co_return fail(std::move(connected.error()));
  }
  http::request<http::string_body> message;
  message.version(11);
  message.method_string(request.method);
  message.target(address_.url().base_path + request.target);
  for (const auto& [name, value] : request.headers) {
    message.set(name, value);
  }
  message.set(http::field::host, address_.url().authority());
  if (!request.body.empty()) {
    message.set(http::field::content_type, "application/json");
  }
  message.keep_alive(false);
  message.body() = std::move(request.body);
  message.prepare_payload();
  error_code error;
  // A node may refuse by the header and leave the body unread: what it says then counts.
  error_code write_error;
  limit(deadlines_.answer);
  co_await http::async_write(stream_, message, token(write_error));
  if (!is_cancelled_) {
    limit(deadlines_.answer);
    co_await http::async_read_header(stream_, buffer_, parser_, token(error));
  }
  if (error || is_cancelled_) {
    co_return fail(status_of(error));
  }
  const auto& header = parser_.get();
  NodeAnswer answer;
  answer.status = static_cast<int>(header.result_int());
  answer.content_type = text_of(header[http::field::content_type]);
  for (const auto& field : header) {
    if (is_for_client(field.name())) {
      answer.headers.emplace_back(text_of(field.name_string()), text_of(field.value()));
    }
  }
  if (const auto length = parser_.content_length()) {
    answer.length = *length;
  }
  co_return answer;
}

asio::awaitable<Expected<std::string>> NodeCall::read_some() {
  std::string data;
  error_code error;
  while (data.empty() && !error && !is_cancelled_ && !parser_.is_done()) {
    data.resize(kReadBytes);
    parser_.get().body().data = data.data();
    parser_.get().body().size = data.size();
    limit(deadlines_.answer);
    co_await http::async_read_some(stream_, buffer_, parser_, token(error));
    data.resize(kReadBytes - parser_.get().body().size);
    if (error == http::error::need_buffer) {
      error.clear();
    }
  }
  if (is_cancelled_ || (error && data.empty())) {
    co_return fail(status_of(error));
  }
  co_return data;
}

asio::awaitable<Expected<std::string>> NodeCall::read_all(std::size_t max_bytes) {
  std::string all;
  while (true) {
    auto part = co_await read_some();
    if (!part) {
      co_return fail(std::move(part.error()));
    }
    if (part->empty()) {
      co_return all;
    }
    all += *part;
    if (all.size() > max_bytes) {
      co_return fail(StatusCode::kIoError,
                     fmt::format("answered more than {} bytes, allowed are so many", max_bytes));
    }
  }
}

}  // namespace karez
