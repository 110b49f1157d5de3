#include "kv/store/pool_socket.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/ip_address.h"

namespace karez {
namespace {

constexpr const char* kClosed = "it has closed the connection";

tl::unexpected<Status> not_usable(std::string what) {
  return fail(StatusCode::kUnavailable, std::move(what));
}
tl::unexpected<Status> not_usable(std::string_view what, int error) {
  return not_usable(fmt::format("{}: {}", what, std::strerror(error)));
}

tl::unexpected<Status> too_late(std::string what) {
  return fail(StatusCode::kDeadlineExceeded, std::move(what));
}

// False: the deadline has passed, or the descriptor is of no use.
bool wait_for(int descriptor, short events, Clock::TimePoint deadline) {
  while (true) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::steady().now());
    if (left.count() <= 0) {
      return false;
    }
    pollfd entry = {descriptor, events, 0};
    const int ready =
        poll(&entry, 1, static_cast<int>(std::min<std::int64_t>(left.count(), 60'000)));
    if (ready > 0) {
      return true;
    }
    if (ready < 0 && errno != EINTR) {
      return false;
    }
  }
}

// OpenSSL's own way to write to a socket raises SIGPIPE.
int link_write(BIO* link, const char* bytes, int size) {
  BIO_clear_retry_flags(link);
  const auto sent = ::send(static_cast<int>(reinterpret_cast<std::intptr_t>(BIO_get_data(link))),
                           bytes, static_cast<std::size_t>(size), MSG_NOSIGNAL);
  if (sent < 0 && (errno == EAGAIN || errno == EINTR)) {
    BIO_set_retry_write(link);
  }
  return static_cast<int>(sent);
}

int link_read(BIO* link, char* bytes, int size) {
  BIO_clear_retry_flags(link);
  const auto got = ::recv(static_cast<int>(reinterpret_cast<std::intptr_t>(BIO_get_data(link))),
                          bytes, static_cast<std::size_t>(size), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
    BIO_set_retry_read(link);
  }
  return static_cast<int>(got);
}

long link_control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

const BIO_METHOD* link_methods() {
  static const BIO_METHOD* const methods = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket");
    KAREZ_CHECK(made != nullptr && BIO_meth_set_write(made, link_write) == 1 &&
                    BIO_meth_set_read(made, link_read) == 1 &&
                    BIO_meth_set_ctrl(made, link_control) == 1,
                "OpenSSL takes another kind of BIO");
    return made;
  }();
  return methods;
}

// What OpenSSL's error means for someone who sets this up.
std::string tls_problem(ssl_st* tls) {
  const unsigned long first = ERR_peek_error();
  const int reason = ERR_GET_LIB(first) == ERR_LIB_SSL ? ERR_GET_REASON(first) : 0;
  std::string text = take_tls_error();
  if (const long verified = SSL_get_verify_result(tls); verified != X509_V_OK) {
    return fmt::format("its certificate is not accepted: {}",
                       X509_verify_cert_error_string(verified));
  }
  if (reason == SSL_R_WRONG_VERSION_NUMBER) {
    return "it does not speak TLS";
  }
  if (reason == SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED) {
    return fmt::format("it wants a certificate of this client ({})", text);
  }
  return text.empty() ? kClosed : fmt::format("TLS: {}", text);
}

}  // namespace

void PoolSocket::FreeTls::operator()(ssl_st* tls) const { SSL_free(tls); }

Expected<std::unique_ptr<PoolSocket>> PoolSocket::connect(const std::string& host, int port,
                                                          const TlsFiles* tls,
                                                          Clock::TimePoint deadline) {
  const auto connected = connect_tcp(host, port, deadline);
  if (!connected) {
    return fail(connected.error());
  }
  std::unique_ptr<PoolSocket> made(new PoolSocket(*connected));
  const int on = 1;
  static_cast<void>(setsockopt(*connected, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
  static_cast<void>(setsockopt(*connected, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on));
  if (tls != nullptr) {
    if (auto begun = made->begin_tls(host, *tls, deadline); !begun) {
      return fail(std::move(begun.error()));
    }
  }
  return made;
}

Expected<int> PoolSocket::connect_tcp(const std::string& host, int port,
                                      Clock::TimePoint deadline) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_ADDRCONFIG | AI_NUMERICSERV;
  if (parse_ip_address(host)) {
    hints.ai_flags |= AI_NUMERICHOST;
    hints.ai_flags &= ~AI_ADDRCONFIG;
  }
  addrinfo* list = nullptr;
  const int looked_up = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (looked_up != 0) {
    return not_usable(fmt::format("no address: {}", gai_strerror(looked_up)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, &freeaddrinfo);
  int addresses_left = 0;
  for (const addrinfo* one = list; one != nullptr; one = one->ai_next) {
    ++addresses_left;
  }
  int error = ETIMEDOUT;
  for (const addrinfo* one = list; one != nullptr; one = one->ai_next) {
    // A first address that nobody answers at leaves time for the others.
    const auto now = Clock::steady().now();
    const auto until = now + (deadline - now) / addresses_left--;
    const int made = socket(one->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (made < 0) {
      error = errno;
      continue;
    }
    error = ::connect(made, one->ai_addr, one->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      error = ETIMEDOUT;
      if (wait_for(made, POLLOUT, until)) {
        socklen_t size = sizeof error;
        getsockopt(made, SOL_SOCKET, SO_ERROR, &error, &size);
      }
    }
    if (error == 0) {
      return made;
    }
    close(made);
  }
  return not_usable("no connection", error);
}

PoolSocket::~PoolSocket() {
  tls_.reset();
  close(socket_);
}

Expected<void> PoolSocket::begin_tls(const std::string& host, const TlsFiles& files,
                                     Clock::TimePoint deadline) {
  // Read anew for each connection: certificates are renewed while a server runs.
  auto context = make_tls_context(files);
  if (!context) {
    return not_usable(context.error().message());
  }
  context_ = std::move(*context);
  tls_.reset(SSL_new(context_.get()));
  BIO* link = BIO_new(link_methods());
  KAREZ_CHECK(tls_ != nullptr && link != nullptr, "OpenSSL has memory");
  BIO_set_data(link, reinterpret_cast<void*>(static_cast<std::intptr_t>(socket_)));
  BIO_set_init(link, 1);
  SSL_set_bio(tls_.get(), link, link);
  SSL_set_hostflags(tls_.get(), X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
  std::string name = host;
  const bool is_set =
      parse_ip_address(host)
          ? X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(tls_.get()), name.c_str()) == 1
          : SSL_set1_host(tls_.get(), name.c_str()) == 1 &&
                // The macro for it has a cast of C.
                SSL_ctrl(tls_.get(), SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name,
                         name.data()) == 1;
  if (!is_set) {
    return not_usable("TLS: the host is no name that a certificate can have");
  }
  while (true) {
    ERR_clear_error();
    errno = 0;
    const int result = SSL_connect(tls_.get());
    if (result == 1) {
      return {};
    }
    const auto step = after_tls_call(result);
    if (!step) {
      return fail(step.error());
    }
    if (!wait_for(socket_, step->wait_for, deadline)) {
      return too_late("no TLS handshake in time; a server that does not speak TLS is silent too");
    }
  }
}

Expected<PoolSocket::Step> PoolSocket::after_tls_call(int result) {
  const int error = errno;
  switch (SSL_get_error(tls_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      return Step{0, POLLIN};
    case SSL_ERROR_WANT_WRITE:
      return Step{0, POLLOUT};
    case SSL_ERROR_ZERO_RETURN:
      return not_usable(kClosed);
    case SSL_ERROR_SYSCALL:
      if (error != 0 && ERR_peek_error() == 0) {
        return not_usable("the connection broke", error);
      }
      return not_usable(tls_problem(tls_.get()));
    default:
      return not_usable(tls_problem(tls_.get()));
  }
}

Expected<PoolSocket::Step> PoolSocket::try_send(std::string_view bytes) {
  if (tls_ == nullptr) {
    const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      return Step{static_cast<std::size_t>(sent), 0};
    }
    return errno == EAGAIN || errno == EINTR ? Expected<Step>(Step{0, POLLOUT})
                                             : not_usable("the connection broke", errno);
  }
  ERR_clear_error();
  errno = 0;
  std::size_t sent = 0;
  const int result = SSL_write_ex(tls_.get(), bytes.data(), bytes.size(), &sent);
  return result == 1 ? Step{sent, 0} : after_tls_call(result);
}

Expected<PoolSocket::Step> PoolSocket::try_receive(std::span<char> memory) {
  if (tls_ == nullptr) {
    const ssize_t got = ::recv(socket_, memory.data(), memory.size(), 0);
    if (got > 0) {
      return Step{static_cast<std::size_t>(got), 0};
    }
    if (got == 0) {
      return not_usable(kClosed);
    }
    return errno == EAGAIN || errno == EINTR ? Expected<Step>(Step{0, POLLIN})
                                             : not_usable("the connection broke", errno);
  }
  ERR_clear_error();
  errno = 0;
  std::size_t got = 0;
  const int result = SSL_read_ex(tls_.get(), memory.data(), memory.size(), &got);
  return result == 1 ? Step{got, 0} : after_tls_call(result);
}

Expected<void> PoolSocket::send(std::string_view bytes, Clock::TimePoint deadline) {
  while (!bytes.empty()) {
    const auto step = try_send(bytes);
    if (!step) {
      // What it has said before it closed tells more.
      char byte = 0;
      const auto last = try_receive(std::span(&byte, 1));
      return fail(last ? step.error() : last.error());
    }
    if (step->wait_for != 0 && !wait_for(socket_, step->wait_for, deadline)) {
      return too_late("it does not take what is sent in time");
    }
    bytes.remove_prefix(step->bytes);
  }
  return {};
}

Expected<std::size_t> PoolSocket::receive(std::span<char> memory, Clock::TimePoint deadline) {
  while (true) {
    const auto step = try_receive(memory);
    if (!step) {
      return fail(step.error());
    }
    if (step->wait_for == 0) {
      return step->bytes;
    }
    if (!wait_for(socket_, step->wait_for, deadline)) {
      return too_late("no answer in time");
    }
  }
}

bool PoolSocket::is_quiet() {
  char byte = 0;
  const auto step = try_receive(std::span(&byte, 1));
  return step && step->wait_for != 0;
}

}  // namespace karez
