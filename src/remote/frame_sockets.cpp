#include "remote/frame_sockets.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/ip_address.h"
#include "remote/wire_frame.h"

namespace karez {

namespace {

constexpr std::size_t kReadBytes = 256 << 10U;
constexpr int kReadsAtATime = 8;
constexpr int kRounds = 16;
constexpr int kBacklog = 128;
constexpr ConnectionId kListenerId = 0;
constexpr ConnectionId kWatchedId = ~ConnectionId{0};
constexpr int kDeadAfterMs = 30'000;  // bytes that nobody acknowledges

Expected<SocketAddress> parse_address(const std::string& host, std::uint16_t port) {
  const auto address = parse_ip_address(host);
  if (!address) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("a peer's host is '{}', allowed are IPv4 and IPv6 addresses", host));
  }
  return address->to_sockaddr(port);
}

std::string to_text(const SocketAddress& address) {
  const bool is_v6 = address.storage.ss_family == AF_INET6;
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address.storage);
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address.storage);
  const void* host = is_v6 ? static_cast<const void*>(&v6->sin6_addr) : &v4->sin_addr;
  std::array<char, INET6_ADDRSTRLEN> text = {};
  static_cast<void>(inet_ntop(address.storage.ss_family, host, text.data(), text.size()));
  return fmt::format("{} port {}", text.data(), ntohs(is_v6 ? v6->sin6_port : v4->sin_port));
}

Status unavailable(std::string_view what, int error) {
  return {StatusCode::kUnavailable, fmt::format("{}: {}", what, std::strerror(error))};
}

void set_option(int socket, int level, int option, int value) {
  static_cast<void>(setsockopt(socket, level, option, &value, sizeof value));
}

}  // namespace

Expected<std::unique_ptr<FrameSockets>> FrameSockets::create(FrameSocketsCallbacks callbacks,
                                                             std::size_t max_unsent_bytes) {
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  if (epoll < 0) {
    return fail(StatusCode::kResourceExhausted,
                fmt::format("no epoll descriptor: {}", std::strerror(errno)));
  }
  return std::unique_ptr<FrameSockets>(
      new FrameSockets(epoll, std::move(callbacks), max_unsent_bytes));
}

FrameSockets::FrameSockets(int epoll, FrameSocketsCallbacks callbacks, std::size_t max_unsent_bytes)
    : epoll_(epoll), callbacks_(std::move(callbacks)), max_unsent_bytes_(max_unsent_bytes) {}

FrameSockets::~FrameSockets() {
  for (const auto& [id, connection] : connections_) {
    ::close(connection.socket);
  }
  if (listener_ >= 0) {
    ::close(listener_);
  }
  ::close(epoll_);
}

void FrameSockets::watch(int descriptor) {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = kWatchedId;
  static_cast<void>(epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &event));
}

Expected<std::uint16_t> FrameSockets::listen(const std::string& host, std::uint16_t port) {
  const Expected<SocketAddress> address = parse_address(host, port);
  if (!address) {
    return fail(address.error());
  }
  const auto failed = [&] {
    return fail(unavailable(fmt::format("cannot listen at {} port {}", host, port), errno));
  };
  listener_ = socket(address->storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (listener_ < 0) {
    return failed();
  }
  set_option(listener_, SOL_SOCKET, SO_REUSEADDR, 1);
  SocketAddress bound;
  bound.size = sizeof bound.storage;
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = kListenerId;
  if (bind(listener_, address->get(), address->size) != 0 || ::listen(listener_, kBacklog) != 0 ||
      getsockname(listener_, reinterpret_cast<sockaddr*>(&bound.storage), &bound.size) != 0 ||
      epoll_ctl(epoll_, EPOLL_CTL_ADD, listener_, &event) != 0) {
    return failed();
  }
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(&bound.storage);
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&bound.storage);
  return ntohs(bound.storage.ss_family == AF_INET6 ? v6->sin6_port : v4->sin_port);
}

Expected<ConnectionId> FrameSockets::connect(const std::string& host, std::uint16_t port) {
  const Expected<SocketAddress> address = parse_address(host, port);
  if (!address) {
    return fail(address.error());
  }
  const int made =
      socket(address->storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (made < 0) {
    return fail(unavailable("no socket", errno));
  }
  if (::connect(made, address->get(), address->size) != 0 && errno != EINPROGRESS) {
    const int error = errno;
    ::close(made);
    return fail(unavailable("no connection", error));
  }
  return add(made, false);
}

ConnectionId FrameSockets::add(int socket, bool is_connected) {
  // Answers must not wait for one another, and a peer without power must not stay for ever.
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, kDeadAfterMs);
  const ConnectionId id = ++last_id_;
  Connection& connection = connections_[id];
  connection.socket = socket;
  connection.is_connected = is_connected;
  connection.wants_to_write = !is_connected;
  epoll_event event = {};
  event.events = EPOLLIN | (is_connected ? 0U : static_cast<std::uint32_t>(EPOLLOUT));
  event.data.u64 = id;
  static_cast<void>(epoll_ctl(epoll_, EPOLL_CTL_ADD, socket, &event));
  return id;
}

void FrameSockets::accept_all() {
  while (true) {
    SocketAddress from;
    from.size = sizeof from.storage;
    const int accepted = accept4(listener_, reinterpret_cast<sockaddr*>(&from.storage), &from.size,
                                 SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (accepted < 0) {
      // It stays in the queue, and the listener readable: whoever waits would turn round and round.
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        watch_listener(false);
      }
      return;
    }
    if (callbacks_.on_accept && callbacks_.on_accept(last_id_ + 1, to_text(from))) {
      add(accepted, true);
    } else {
      ::close(accepted);
    }
  }
}

void FrameSockets::watch_listener(bool accepts) {
  accepts_ = accepts;
  accepts_again_ = std::chrono::steady_clock::now() + kAcceptPause;
  epoll_event event = {};
  event.events = accepts ? static_cast<std::uint32_t>(EPOLLIN) : 0U;
  event.data.u64 = kListenerId;
  static_cast<void>(epoll_ctl(epoll_, EPOLL_CTL_MOD, listener_, &event));
}

void FrameSockets::send(ConnectionId id, std::vector<std::byte> frame) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) {
    return;
  }
  found->second.output_bytes += frame.size();
  found->second.output.push_back(std::move(frame));
  // An error is seen by progress(), which may tell about it.
  if (found->second.is_connected && found->second.output.size() == 1) {
    static_cast<void>(write_to(id, found->second));
  }
}

bool FrameSockets::write_to(ConnectionId id, Connection& connection) {
  while (!connection.output.empty()) {
    const std::vector<std::byte>& frame = connection.output.front();
    const ssize_t sent = ::send(connection.socket, frame.data() + connection.output_sent,
                                frame.size() - connection.output_sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) {
        continue;
      }
      watch_connection(id, connection, true, connection.is_held_back);
      return errno == EAGAIN || errno == EWOULDBLOCK;
    }
    connection.output_sent += static_cast<std::size_t>(sent);
    if (connection.output_sent == frame.size()) {
      connection.output_bytes -= frame.size();
      connection.output.pop_front();
      connection.output_sent = 0;
    }
  }
  watch_connection(id, connection, false, connection.is_held_back);
  return true;
}

void FrameSockets::watch_connection(ConnectionId id, Connection& connection, bool wants_to_write,
                                    bool is_held_back) {
  if (connection.wants_to_write == wants_to_write && connection.is_held_back == is_held_back) {
    return;
  }
  const int error = errno;
  connection.wants_to_write = wants_to_write;
  connection.is_held_back = is_held_back;
  epoll_event event = {};
  event.events = (is_held_back ? 0U : static_cast<std::uint32_t>(EPOLLIN)) |
                 (wants_to_write ? static_cast<std::uint32_t>(EPOLLOUT) : 0U);
  event.data.u64 = id;
  static_cast<void>(epoll_ctl(epoll_, EPOLL_CTL_MOD, connection.socket, &event));
  errno = error;
}

void FrameSockets::close(ConnectionId id) {
  const auto found = connections_.find(id);
  if (found != connections_.end()) {
    ::close(found->second.socket);
    connections_.erase(found);
  }
}

std::size_t FrameSockets::bytes_unsent(ConnectionId id) const {
  const auto found = connections_.find(id);
  return found == connections_.end() ? 0 : found->second.output_bytes - found->second.output_sent;
}

bool FrameSockets::is_held_back(ConnectionId id) const {
  const auto found = connections_.find(id);
  return found != connections_.end() && found->second.is_held_back;
}

void FrameSockets::progress() {
  if (!accepts_ && std::chrono::steady_clock::now() >= accepts_again_) {
    watch_listener(true);
  }
  std::array<epoll_event, 64> events;
  for (int round = 0; round < kRounds; ++round) {
    const int count = epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), 0);
    bool is_ours = false;
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events[static_cast<std::size_t>(i)];
      if (event.data.u64 == kListenerId) {
        accept_all();
      } else if (event.data.u64 != kWatchedId) {
        handle(event.data.u64, event.events);
      }
      is_ours = is_ours || event.data.u64 != kWatchedId;
    }
    if (!is_ours) {
      return;
    }
  }
}

void FrameSockets::handle(ConnectionId id, std::uint32_t events) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) {
    return;  // closed by a callback of this round
  }
  Connection& connection = found->second;
  if (!connection.is_connected) {
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(connection.socket, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) {
      report_broken(id, unavailable("no connection", error));
      return;
    }
    if ((events & EPOLLOUT) == 0) {
      return;
    }
    connection.is_connected = true;
  }
  if ((events & EPOLLOUT) != 0 && !write_to(id, connection)) {
    report_broken(id, unavailable("the connection broke", errno));
    return;
  }
  if (connection.is_held_back && bytes_unsent(id) <= max_unsent_bytes_ / 2) {
    watch_connection(id, connection, connection.wants_to_write, false);
    if (!take_frames(id)) {
      return;
    }
  }
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0 && !is_held_back(id)) {
    read_from(id);
  }
}

void FrameSockets::read_from(ConnectionId id) {
  for (int i = 0; i < kReadsAtATime; ++i) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) {
      return;
    }
    Connection& connection = found->second;
    if (connection.input.size() - connection.input_bytes < kReadBytes) {
      connection.input.resize(connection.input_bytes + kReadBytes);
    }
    const ssize_t got = recv(connection.socket, connection.input.data() + connection.input_bytes,
                             connection.input.size() - connection.input_bytes, MSG_DONTWAIT);
    if (got == 0) {
      report_broken(id, {StatusCode::kUnavailable, "the peer has closed the connection"});
      return;
    }
    if (got < 0) {
      if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
        report_broken(id, unavailable("the connection broke", errno));
      }
      return;
    }
    connection.input_bytes += static_cast<std::size_t>(got);
    if (callbacks_.on_bytes) {
      callbacks_.on_bytes(id);
    }
    if (!take_frames(id) || is_held_back(id)) {
      return;
    }
  }
}

bool FrameSockets::take_frames(ConnectionId id) {
  std::size_t begin = 0;
  while (take_frame(id, begin)) {
  }
  const auto found = connections_.find(id);
  if (found == connections_.end()) {
    return false;
  }
  Connection& connection = found->second;
  std::memmove(connection.input.data(), connection.input.data() + begin,
               connection.input_bytes - begin);
  connection.input_bytes -= begin;
  return true;
}

bool FrameSockets::take_frame(ConnectionId id, std::size_t& begin) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) {
    return false;
  }
  if (bytes_unsent(id) > max_unsent_bytes_) {
    watch_connection(id, found->second, found->second.wants_to_write, true);
    return false;
  }
  const std::span<const std::byte> bytes = std::span<const std::byte>(found->second.input)
                                               .subspan(begin, found->second.input_bytes - begin);
  const Expected<std::optional<std::size_t>> size = frame_size(bytes);
  if (!size) {
    // One that reads as a frame as far as it goes gets an answer; this has no end to answer at.
    report_broken(id, size.error());
    return false;
  }
  if (!size->has_value() || bytes.size() < **size) {
    return false;
  }
  begin += **size;
  callbacks_.on_frame(id, bytes.first(**size));
  return true;
}

void FrameSockets::report_broken(ConnectionId id, const Status& status) {
  const Status kept = status;  // it may be of the connection
  close(id);
  if (callbacks_.on_broken) {
    callbacks_.on_broken(id, kept);
  }
}

}  // namespace karez
