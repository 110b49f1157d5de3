// A client of HTTP servers for tests, in bytes: it may stop, hang up or write nonsense.
//
// Thread: one caller.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

namespace karez {

// A connection of a client; blocking.
class RawClient {
 public:
  explicit RawClient(int port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    is_open_ = connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
    EXPECT_TRUE(is_open_);
  }
  ~RawClient() { close(socket_); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  void send(const std::string& bytes) const {
    EXPECT_EQ(::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  // Empty: the server has closed the connection.
  std::string receive() const {
    std::array<char, 4096> buffer{};
    const ssize_t count = recv(socket_, buffer.data(), buffer.size(), 0);
    return {buffer.data(), static_cast<std::size_t>(std::max<ssize_t>(count, 0))};
  }
  std::string receive_all() const {
    std::string all;
    for (std::string part = receive(); !part.empty(); part = receive()) {
      all += part;
    }
    return all;
  }
  void stop_sending() const { shutdown(socket_, SHUT_WR); }

 private:
  int socket_;
  bool is_open_ = false;
};

inline std::string get(const std::string& target, const std::string& headers = "") {
  return "GET " + target + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + headers +
         "\r\n";
}

inline std::string post(const std::string& target, const std::string& body,
                        const std::string& headers = "Connection: close\r\n") {
  return "POST " + target +
         " HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" +
         headers + "\r\n" + body;
}

}  // namespace karez
