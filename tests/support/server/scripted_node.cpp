#include "support/server/scripted_node.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <utility>

#include "base/check.h"

namespace karez {
namespace {

std::string receive_request(int socket) {
  std::string text;
  std::size_t wanted = std::string::npos;
  std::array<char, 4096> buffer{};
  while (text.size() < wanted) {
    const ssize_t count = recv(socket, buffer.data(), buffer.size(), 0);
    if (count <= 0) {
      return {};
    }
    text.append(buffer.data(), static_cast<std::size_t>(count));
    const std::size_t end = text.find("\r\n\r\n");
    if (end != std::string::npos && wanted == std::string::npos) {
      const std::size_t length = text.find("Content-Length: ");
      wanted = end + 4 + (length < end ? std::stoul(text.substr(length + 16)) : 0);
    }
  }
  return text;
}

}  // namespace

std::string ScriptedExchange::body() const {
  return request_.substr(request_.find("\r\n\r\n") + 4);
}

bool ScriptedExchange::send(const std::string& bytes) const {
  std::size_t sent = 0;
  while (sent < bytes.size()) {
    pollfd state{socket_, POLLOUT, 0};
    poll(&state, 1, 10);
    const ssize_t count =
        ::send(socket_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count > 0) {
      sent += static_cast<std::size_t>(count);
    } else if (is_closed() || stopping_) {
      return false;
    }
  }
  return true;
}

bool ScriptedExchange::is_closed() const {
  pollfd state{socket_, POLLRDHUP, 0};
  return poll(&state, 1, 0) > 0 && (state.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

void ScriptedExchange::wait(const std::function<bool()>& condition) const {
  while (!stopping_ && !is_closed() && !condition()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

void ScriptedExchange::respond(int status, const std::string& body,
                               const std::string& headers) const {
  send("HTTP/1.1 " + std::to_string(status) + " X\r\nContent-Type: application/json\r\n" + headers +
       "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
}

void ScriptedExchange::begin_chunked(const std::string& content_type) const {
  send("HTTP/1.1 200 OK\r\nContent-Type: " + content_type +
       "\r\nTransfer-Encoding: chunked\r\n\r\n");
}

bool ScriptedExchange::chunk(const std::string& data) const {
  std::array<char, 32> size{};
  std::snprintf(size.data(), size.size(), "%zx\r\n", data.size());
  return send(size.data() + data + "\r\n");
}

ScriptedNode::ScriptedNode(Script script)
    : script_(std::move(script)), listener_(socket(AF_INET, SOCK_STREAM, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  KAREZ_CHECK(bind(listener_, generic, size) == 0 && listen(listener_, 64) == 0 &&
                  getsockname(listener_, generic, &size) == 0,
              "a loopback port is free");
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { accept_all(); });
}

ScriptedNode::~ScriptedNode() {
  stopping_ = true;
  stop();
  for (std::thread& connection : connections_) {
    connection.join();
  }
}

void ScriptedNode::stop() {
  if (thread_.joinable()) {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }
}

std::string ScriptedNode::last_request() const {
  const std::lock_guard lock(mutex_);
  return last_request_;
}

void ScriptedNode::accept_all() {
  while (true) {
    const int connection = accept(listener_, nullptr, nullptr);
    if (connection < 0) {
      return;
    }
    const std::lock_guard lock(mutex_);
    connections_.emplace_back([this, connection] { serve(connection); });
  }
}

void ScriptedNode::serve(int socket) {
  const std::string request = receive_request(socket);
  const ScriptedExchange exchange(socket, request, stopping_);
  if (request.starts_with("GET /health ")) {
    const int status = health_;
    if (status == 0) {
      exchange.wait();
    } else {
      exchange.respond(status, "{}");
    }
  } else if (!request.empty()) {
    {
      const std::lock_guard lock(mutex_);
      last_request_ = request;
    }
    ++requests_;
    script_(exchange);
  }
  close(socket);
}

}  // namespace karez
