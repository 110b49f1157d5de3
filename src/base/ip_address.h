// An IP address as a value: for whom may connect, and where to connect to. Not a name, and no
// interface (fe80::1%eth0).
//
// Thread: values.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace karez {

// What the system takes.
struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t size = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

struct IpAddress {
  // An IPv4 address as ::ffff:a.b.c.d, so that both ways to write one are the same.
  std::array<std::uint8_t, 16> bytes = {};

  static constexpr int kBits = 128;
  static constexpr int kV4Bits = 96;  // that an IPv4 address has before its own

  bool is_v4() const;
  bool is_loopback() const;  // 127.0.0.0/8, ::1
  bool is_any() const;       // 0.0.0.0, ::
  // Of AF_INET if it is an IPv4 address, however it was written.
  SocketAddress to_sockaddr(std::uint16_t port) const;
  bool operator==(const IpAddress&) const = default;
};

// "10.0.0.1", "fd00::1", "::ffff:10.0.0.1"; nothing shorter, no brackets. None: it is no address.
std::optional<IpAddress> parse_ip_address(std::string_view text);

// "localhost" in any case, or a loopback address. Other names are not looked up.
bool names_loopback(std::string_view host);

}  // namespace karez
