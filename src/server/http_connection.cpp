#include "server/http_connection.h"
//
#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl/ssl_stream.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

namespace karez {
namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;
using PlainStream = beast::tcp_stream;
using TlsStream = beast::ssl_stream<beast::tcp_stream>;

constexpr std::size_t kReadBytes = 4096;
constexpr std::size_t kWakeBytes = 16 * 1024;
// Bounds what the kernel holds for a client that does not read.
constexpr int kSendBufferBytes = 256 * 1024;

std::string text_of(beast::string_view view) { return {view.data(), view.size()}; }

// "http://host/path", the form for proxies, which every server must take: its host goes before the
// Host header.
void split_absolute_target(HttpRequest& request) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (beast::iequals(beast::string_view(request.target).substr(0, scheme.size()),
                       {scheme.data(), scheme.size()})) {
      const std::string rest = request.target.substr(scheme.size());
      const std::size_t path = std::min(rest.find_first_of("/?#"), rest.size());
      request.host = rest.substr(0, path);
      request.target = (rest[path] == '/' ? "" : "/") + rest.substr(path);
      return;
    }
  }
}

template <typename Stream>
class Connection final : public HttpConnection, public HttpExchange {
 public:
  Connection(Stream stream, HttpLane& lane) : stream_(std::move(stream)), lane_(lane) {
    lane_.connections.insert(this);
  }
  ~Connection() override { lane_.connections.erase(this); }

  asio::awaitable<void> run() {
    if constexpr (std::is_same_v<Stream, TlsStream>) {
      error_code error;
      socket().expires_after(lane_.options.header_timeout);
      co_await stream_.async_handshake(asio::ssl::stream_base::server, token(error));
      if (error) {
        co_return;
      }
    }
    while (!lane_.stopping) {
      const bool another = co_await exchange();
      if (!another) {
        break;
      }
    }
    co_await shut_down();
  }

  // HttpConnection
  void close_if_idle() override {
    if (idle_) {
      close_now();
    }
  }
  void close_now() override {
    error_code ignored;
    socket().socket().close(ignored);
  }

  // HttpExchange
  asio::awaitable<bool> respond(HttpResponse response) override {
    http::response<http::string_body> message(static_cast<http::status>(response.status), version_);
    prepare(message, response.content_type);
    for (const auto& [name, value] : response.headers) {
      message.set(name, value);
    }
    message.body() = std::move(response.body);
    message.prepare_payload();
    error_code error;
    socket().expires_after(lane_.options.write_timeout);
    if (is_head_) {
      http::response<http::empty_body> header_only(message.base());
      http::response_serializer<http::empty_body> serializer(header_only);
      co_await http::async_write_header(stream_, serializer, token(error));
    } else {
      co_await http::async_write(stream_, message, token(error));
    }
    answered_ = true;
    co_return !error;
  }

  asio::awaitable<bool> begin_stream(HttpResponse response) override {
    http::response<http::empty_body> message(static_cast<http::status>(response.status), version_);
    chunked_ = version_ >= 11;
    if (!chunked_) {
      close_after_ = true;  // the end of the connection is the end of the answer
    }
    prepare(message, response.content_type);
    for (const auto& [name, value] : response.headers) {
      message.set(name, value);
    }
    message.set(http::field::cache_control, "no-cache");
    message.set("X-Accel-Buffering", "no");
    message.chunked(chunked_);
    http::response_serializer<http::empty_body> serializer(message);
    error_code error;
    socket().expires_after(lane_.options.write_timeout);
    co_await http::async_write_header(stream_, serializer, token(error));
    answered_ = true;
    co_return !error;
  }

  asio::awaitable<bool> write(std::string data) override {
    if (data.empty() || is_head_) {
      co_return true;
    }
    error_code error;
    socket().expires_after(lane_.options.write_timeout);
    if (chunked_) {
      data = fmt::format("{:x}\r\n{}\r\n", data.size(), data);
    }
    co_await asio::async_write(stream_, asio::buffer(data), token(error));
    co_return !error;
  }

  asio::awaitable<bool> end_stream() override {
    if (!chunked_ || is_head_) {
      co_return true;
    }
    const std::string last = "0\r\n\r\n";
    error_code error;
    socket().expires_after(lane_.options.write_timeout);
    co_await asio::async_write(stream_, asio::buffer(last), token(error));
    co_return !error;
  }

  void abandon() override {
    close_after_ = true;
    socket().cancel();
  }

  void close_after() override { close_after_ = true; }

  bool client_gone() const override {
    const auto& plain = beast::get_lowest_layer(stream_).socket();
    if (!plain.is_open()) {
      return true;
    }
    pollfd state{const_cast<std::remove_cvref_t<decltype(plain)>&>(plain).native_handle(),
                 POLLRDHUP, 0};
    return poll(&state, 1, 0) > 0 && (state.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
  }

  asio::any_io_executor executor() override { return stream_.get_executor(); }

 private:
  auto token(error_code& error) { return asio::redirect_error(asio::use_awaitable, error); }
  beast::tcp_stream& socket() { return beast::get_lowest_layer(stream_); }

  template <typename Message>
  void prepare(Message& message, const std::string& content_type) {
    close_after_ = close_after_ || lane_.stopping;
    message.set(http::field::server, "karez");
    message.set(http::field::content_type, content_type);
    message.set("X-Content-Type-Options", "nosniff");
    message.keep_alive(!close_after_);
  }

  // Receives a request and has it answered. False: the connection is done.
  asio::awaitable<bool> exchange() {
    is_head_ = false;
    answered_ = false;
    chunked_ = false;
    error_code error;
    if (buffer_.size() == 0) {
      // Idle: nothing is held for the client but this coroutine and its socket.
      idle_ = true;
      buffer_.shrink_to_fit();
      socket().expires_after(lane_.options.idle_timeout);
      const std::size_t count =
          co_await stream_.async_read_some(buffer_.prepare(kReadBytes), token(error));
      idle_ = false;
      if (error) {
        co_return false;
      }
      buffer_.commit(count);
    }
    http::request_parser<http::string_body> parser;
    parser.header_limit(static_cast<std::uint32_t>(lane_.options.max_header_bytes));
    parser.body_limit(lane_.options.max_body_bytes);
    socket().expires_after(lane_.options.header_timeout);
    co_await http::async_read_header(stream_, buffer_, parser, token(error));
    if (error) {
      co_return co_await refuse(error);
    }
    HttpRequest request = head_of(parser.get());
    close_after_ = !parser.get().keep_alive();
    const std::size_t hosts = parser.get().count(http::field::host);
    if (hosts > 1 || (hosts == 0 && version_ >= 11)) {
      close_after_ = true;
      co_await respond(lane_.handler.protocol_error(
          400, fmt::format("the request has {} Host headers, needed is one", hosts)));
      co_return false;
    }
    if (auto rejection = lane_.handler.reject(request)) {
      // The body, if any, stays unread, so nothing more can be read after it.
      close_after_ = close_after_ || !parser.is_done();
      const bool sent = co_await respond(std::move(*rejection));
      co_return sent && !close_after_;
    }
    if (!parser.is_done()) {
      const bool complete = co_await read_body(parser, error);
      if (!complete) {
        co_return co_await refuse(error);
      }
    }
    request.body = std::move(parser.get().body());
    socket().expires_never();
    co_await lane_.handler.handle(std::move(request), *this);
    co_return answered_ && !close_after_;
  }

  template <typename Parser>
  asio::awaitable<bool> read_body(Parser& parser, error_code& error) {
    socket().expires_after(lane_.options.body_timeout);
    if (parser.get()[http::field::expect] == "100-continue") {
      const std::string go_on = "HTTP/1.1 100 Continue\r\n\r\n";
      co_await asio::async_write(stream_, asio::buffer(go_on), token(error));
      if (error) {
        co_return false;
      }
    }
    parser.eager(true);
    while (!error && !parser.is_done()) {
      wake_at(missing_bytes(parser));
      co_await http::async_read_some(stream_, buffer_, parser, token(error));
    }
    wake_at(1);
    co_return !error;
  }

  // Bytes that a body of known length surely still needs from the network.
  template <typename Parser>
  std::size_t missing_bytes(const Parser& parser) const {
    const auto remaining = parser.content_length_remaining();
    return remaining && *remaining > buffer_.size()
               ? static_cast<std::size_t>(*remaining) - buffer_.size()
               : 1;
  }

  // So many bytes must have come before the kernel wakes this thread: a client that sends its body
  // byte by byte then costs next to nothing. TLS reads ahead, so that less may be to come there.
  void wake_at(std::size_t bytes) {
    if constexpr (std::is_same_v<Stream, PlainStream>) {
      error_code ignored;
      const auto count = static_cast<int>(std::clamp<std::size_t>(bytes, 1, kWakeBytes));
      socket().socket().set_option(asio::socket_base::receive_low_watermark(count), ignored);
    }
  }

  template <typename Header>
  HttpRequest head_of(const Header& header) {
    version_ = header.version();
    is_head_ = header.method() == http::verb::head;
    HttpRequest request;
    request.method = text_of(header.method_string());
    request.target = text_of(header.target());
    request.host = text_of(header[http::field::host]);
    split_absolute_target(request);
    request.origin = text_of(header[http::field::origin]);
    request.authorization = text_of(header[http::field::authorization]);
    request.preflight_headers = text_of(header[http::field::access_control_request_headers]);
    for (const std::string& name : lane_.options.kept_headers) {
      if (const auto found = header.find(name); found != header.end()) {
        request.headers.emplace_back(name, text_of(found->value()));
      }
    }
    return request;
  }

  // Answers a request that could not be read, if there is somebody to answer.
  asio::awaitable<bool> refuse(error_code error) {
    close_after_ = true;
    version_ = 11;
    int status = 400;
    std::string message = "this is not an HTTP/1.1 request";
    if (error == http::error::end_of_stream || error == http::error::partial_message ||
        error == asio::error::eof || error == asio::error::connection_reset ||
        error == asio::error::operation_aborted) {
      co_return false;
    }
    if (error == http::error::body_limit) {
      status = 413;
      message = fmt::format("the body is larger than {} bytes", lane_.options.max_body_bytes);
    } else if (error == http::error::header_limit || error == http::error::buffer_overflow) {
      status = 431;
      message = fmt::format("the header is larger than {} bytes", lane_.options.max_header_bytes);
    } else if (error == beast::error::timeout) {
      // The stream is closed already.
      co_return false;
    }
    co_await respond(lane_.handler.protocol_error(status, std::move(message)));
    co_return false;
  }

  // Ends the connection so that the client sees what was sent to it: a plain close would reset the
  // connection when unread bytes are left, and the client might lose the answer.
  asio::awaitable<void> shut_down() {
    error_code error;
    if constexpr (std::is_same_v<Stream, TlsStream>) {
      socket().expires_after(std::chrono::seconds(1));
      co_await stream_.async_shutdown(token(error));
    }
    socket().socket().shutdown(asio::ip::tcp::socket::shutdown_send, error);
    if (error) {
      co_return;
    }
    socket().expires_after(std::chrono::seconds(1));
    buffer_.clear();
    for (int reads = 0; reads < 64 && !error; ++reads) {
      co_await socket().async_read_some(buffer_.prepare(16 * kReadBytes), token(error));
    }
  }

  Stream stream_;
  HttpLane& lane_;
  beast::flat_buffer buffer_{64 * kReadBytes};
  unsigned version_ = 11;
  bool idle_ = false;
  bool is_head_ = false;
  bool answered_ = false;
  bool chunked_ = false;
  bool close_after_ = false;
};

}  // namespace

asio::awaitable<void> serve_connection(asio::ip::tcp::socket socket, HttpLane& lane) {
  error_code ignored;
  socket.set_option(asio::ip::tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  socket.set_option(asio::socket_base::send_buffer_size(kSendBufferBytes), ignored);
  if (lane.tls != nullptr) {
    auto connection =
        std::make_unique<Connection<TlsStream>>(TlsStream(std::move(socket), *lane.tls), lane);
    co_await connection->run();
  } else {
    auto connection =
        std::make_unique<Connection<PlainStream>>(PlainStream(std::move(socket)), lane);
    co_await connection->run();
  }
}

}  // namespace karez
