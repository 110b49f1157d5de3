#include "base/ip_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>

namespace karez {
namespace {

constexpr std::array<std::uint8_t, IpAddress::kV4Bits / 8> kV4Begin = {0, 0, 0, 0, 0,    0,
                                                                       0, 0, 0, 0, 0xFF, 0xFF};
constexpr std::size_t kV4At = kV4Begin.size();

bool is_zero(std::span<const std::uint8_t> bytes) {
  return std::ranges::all_of(bytes, [](std::uint8_t byte) { return byte == 0; });
}

}  // namespace

bool IpAddress::is_v4() const {
  return std::ranges::equal(std::span(bytes).first<kV4At>(), kV4Begin);
}

bool IpAddress::is_loopback() const {
  return is_v4() ? bytes[kV4At] == 127 : is_zero(std::span(bytes).first<15>()) && bytes[15] == 1;
}

bool IpAddress::is_any() const { return is_zero(std::span(bytes).subspan(is_v4() ? kV4At : 0)); }

SocketAddress IpAddress::to_sockaddr(std::uint16_t port) const {
  SocketAddress address;
  if (is_v4()) {
    sockaddr_in v4 = {};
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    std::memcpy(&v4.sin_addr, bytes.data() + kV4At, sizeof v4.sin_addr);
    std::memcpy(&address.storage, &v4, sizeof v4);
    address.size = sizeof v4;
  } else {
    sockaddr_in6 v6 = {};
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    std::memcpy(&v6.sin6_addr, bytes.data(), sizeof v6.sin6_addr);
    std::memcpy(&address.storage, &v6, sizeof v6);
    address.size = sizeof v6;
  }
  return address;
}

std::optional<IpAddress> parse_ip_address(std::string_view text) {
  if (text.find('\0') != std::string_view::npos) {
    return std::nullopt;  // C would see its beginning
  }
  const std::string whole(text);
  IpAddress address;
  if (inet_pton(AF_INET, whole.c_str(), address.bytes.data() + kV4At) == 1) {
    std::ranges::copy(kV4Begin, address.bytes.begin());
    return address;
  }
  if (inet_pton(AF_INET6, whole.c_str(), address.bytes.data()) == 1) {
    return address;
  }
  return std::nullopt;
}

bool names_loopback(std::string_view host) {
  constexpr std::string_view kName = "localhost";
  const auto is_same = [](char a, char b) {
    return (a >= 'A' && a <= 'Z' ? static_cast<char>(a - 'A' + 'a') : a) == b;
  };
  if (std::ranges::equal(host, kName, is_same)) {
    return true;
  }
  const auto address = parse_ip_address(host);
  return address && address->is_loopback();
}

}  // namespace karez
