#include "server/http_server.h"

#include <fmt/format.h>
#include <openssl/ssl.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/ssl/context.hpp>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "base/host_port.h"
#include "server/http_connection.h"

namespace karez {
namespace {

using asio::ip::tcp;
using boost::system::error_code;

// For the last words to the clients whose answers were cut.
constexpr std::chrono::milliseconds kCutTime{2000};

// Each connection is a file; the soft limit is often only 1,024.
void raise_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
}

Expected<std::optional<asio::ssl::context>> make_tls(const HttpOptions& options) {
  if (options.ssl_key_file.empty() && options.ssl_cert_file.empty()) {
    return std::optional<asio::ssl::context>();
  }
  if (options.ssl_key_file.empty() || options.ssl_cert_file.empty()) {
    return fail(StatusCode::kInvalidArgument,
                "--ssl-key-file and --ssl-cert-file must be given together");
  }
  std::optional<asio::ssl::context> context(std::in_place, asio::ssl::context::tls_server);
  SSL_CTX_set_min_proto_version(context->native_handle(), TLS1_2_VERSION);
  error_code error;
  context->use_certificate_chain_file(options.ssl_cert_file, error);
  if (error) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("--ssl-cert-file {}: {}", options.ssl_cert_file, error.message()));
  }
  context->use_private_key_file(options.ssl_key_file, asio::ssl::context::pem, error);
  if (error) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("--ssl-key-file {}: {}", options.ssl_key_file, error.message()));
  }
  return context;
}

}  // namespace

std::string url_of(const HttpOptions& options, int port) {
  return fmt::format("{}://{}", options.ssl_cert_file.empty() ? "http" : "https",
                     host_and_port(options.host, port));
}

class HttpServer::Impl {
 public:
  Impl(const HttpOptions& options, HttpHandler& handler, std::optional<asio::ssl::context> tls)
      : options_(options), tls_(std::move(tls)) {
    for (int i = 0; i < std::max(options_.io_threads, 1); ++i) {
      lanes_.push_back(std::make_unique<Lane>(options_, handler, tls_ ? &*tls_ : nullptr));
    }
    acceptor_.emplace(lanes_[0]->context);
  }

  Expected<void> listen() {
    error_code error;
    const std::string& name = options_.host == "localhost" ? kLoopback : options_.host;
    const auto address = asio::ip::make_address(name, error);
    if (error) {
      return fail(
          StatusCode::kInvalidArgument,
          fmt::format("--host is {}, allowed are IP addresses and localhost", options_.host));
    }
    const tcp::endpoint endpoint(address, static_cast<std::uint16_t>(options_.port));
    acceptor_->open(endpoint.protocol(), error);
    if (!error) {
      acceptor_->set_option(asio::socket_base::reuse_address(true), error);
    }
    if (!error) {
      acceptor_->bind(endpoint, error);
    }
    if (!error) {
      acceptor_->listen(kBacklog, error);
    }
    if (error) {
      return fail(StatusCode::kUnavailable,
                  fmt::format("cannot listen on {} port {}: {}", options_.host, options_.port,
                              error.message()));
    }
    port_ = acceptor_->local_endpoint().port();
    return {};
  }

  void run() {
    raise_file_limit();
    is_accepting_ = true;
    asio::co_spawn(lanes_[0]->context, accept(),
                   [this](const std::exception_ptr&) { is_accepting_ = false; });
    for (const auto& lane : lanes_) {
      lane->thread = std::thread([&context = lane->context] { context.run(); });
    }
  }

  void on_every_lane(const std::function<void(HttpLane&)>& action) {
    for (const auto& lane : lanes_) {
      asio::post(lane->context, [action, &shared = lane->shared] { action(shared); });
    }
  }

  void stop_accepting() {
    asio::post(lanes_[0]->context, [this] {
      error_code ignored;
      acceptor_->close(ignored);
    });
    on_every_lane([](HttpLane& lane) {
      lane.stopping = true;
      for (HttpConnection* connection : lane.connections) {
        connection->close_if_idle();
      }
    });
  }

  void close_now() {
    if (joined_) {
      return;
    }
    joined_ = true;
    stop_accepting();
    on_every_lane([](HttpLane& lane) {
      for (HttpConnection* connection : lane.connections) {
        connection->close_now();
      }
    });
    // Every coroutine sees its socket closed and ends; the guards keep the threads until then. One
    // that was being accepted may still come.
    while (is_accepting_ || open_ > 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      on_every_lane([](HttpLane& lane) {
        for (HttpConnection* connection : lane.connections) {
          connection->close_now();
        }
      });
    }
    for (const auto& lane : lanes_) {
      lane->guard.reset();
      lane->context.stop();
      lane->thread.join();
    }
  }

  static constexpr int kBacklog = 4096;
  static inline const std::string kLoopback = "127.0.0.1";

  int port_ = 0;
  std::atomic<std::size_t> open_{0};
  std::atomic<bool> is_accepting_{false};

 private:
  struct Lane {
    Lane(const HttpOptions& options, HttpHandler& handler, asio::ssl::context* tls)
        : shared{options, handler, tls, {}, false}, guard(context.get_executor()) {}
    HttpLane shared;  // before the context, whose coroutines use it until they are destroyed
    asio::io_context context{1};
    asio::executor_work_guard<asio::io_context::executor_type> guard;
    std::thread thread;
  };

  asio::awaitable<void> accept() {
    std::size_t next = 0;
    asio::steady_timer pause(lanes_[0]->context);
    while (acceptor_->is_open()) {
      Lane& lane = *lanes_[next++ % lanes_.size()];
      error_code error;
      tcp::socket socket = co_await acceptor_->async_accept(
          lane.context, asio::redirect_error(asio::use_awaitable, error));
      if (error) {
        // Out of files, most likely: the waiting client must not make this a busy loop.
        pause.expires_after(std::chrono::milliseconds(50));
        co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, error));
        continue;
      }
      if (open_ >= options_.max_connections) {
        continue;  // closes it
      }
      ++open_;
      asio::co_spawn(lane.context, serve_connection(std::move(socket), lane.shared),
                     [this](const std::exception_ptr&) { --open_; });
    }
  }

  const HttpOptions options_;
  std::optional<asio::ssl::context> tls_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::optional<tcp::acceptor> acceptor_;  // on the first lane
  bool joined_ = false;
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Expected<std::unique_ptr<HttpServer>> HttpServer::start(const HttpOptions& options,
                                                        HttpHandler& handler) {
  auto tls = make_tls(options);
  if (!tls) {
    return fail(std::move(tls.error()));
  }
  auto impl = std::make_unique<Impl>(options, handler, std::move(*tls));
  if (auto listening = impl->listen(); !listening) {
    return fail(std::move(listening.error()));
  }
  impl->run();
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::~HttpServer() { impl_->close_now(); }

int HttpServer::port() const { return impl_->port_; }
void HttpServer::stop_accepting() { impl_->stop_accepting(); }
void HttpServer::close_now() { impl_->close_now(); }
std::size_t HttpServer::connections() const { return impl_->open_; }

bool HttpServer::shut_down(std::chrono::milliseconds deadline, const std::function<void()>& cut) {
  stop_accepting();
  const bool clean = wait_until_idle(deadline);
  if (!clean) {
    cut();
    wait_until_idle(kCutTime);
  }
  close_now();
  return clean;
}

bool HttpServer::wait_until_idle(std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (impl_->open_ > 0) {
    if (std::chrono::steady_clock::now() >= deadline) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

}  // namespace karez
