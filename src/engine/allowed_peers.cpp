#include "engine/allowed_peers.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <utility>

namespace karez {
namespace {

constexpr int kAllBits = 128;
constexpr int kV4Bits = 96;  // that an IPv4 address has before its own
constexpr int kLastPort = 65'535;

std::optional<int> number_in(std::string_view text, int low, int high) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > high) {
    return std::nullopt;
  }
  return value;
}

bool is_equal(const std::array<std::uint8_t, 16>& a, const std::array<std::uint8_t, 16>& b,
              int bits) {
  for (int i = 0; i < bits; i += 8) {
    const std::size_t at = static_cast<std::size_t>(i / 8);
    const int ignored = std::max(0, 8 - (bits - i));
    if (a[at] >> ignored != b[at] >> ignored) {
      return false;
    }
  }
  return true;
}

}  // namespace

AllowedPeers::AllowedPeers() : rules_(loopback()) {}

std::vector<AllowedPeers::Rule> AllowedPeers::loopback() {
  Rule v4{{}, kV4Bits + 8, 0};
  read_address("127.0.0.0", v4.network);
  Rule v6{{}, kAllBits, 0};
  read_address("::1", v6.network);
  return {v4, v6};
}

bool AllowedPeers::go_beyond_loopback() const {
  const std::vector<Rule> here = loopback();
  return std::ranges::any_of(rules_, [&](const Rule& rule) {
    return std::ranges::none_of(here, [&](const Rule& one) {
      return rule.bits >= one.bits && is_equal(rule.network, one.network, one.bits);
    });
  });
}

bool AllowedPeers::read_address(const std::string& text, Address& address) {
  in_addr v4{};
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) {
    address = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};
    std::memcpy(address.data() + kV4Bits / 8, &v4, sizeof v4);
    return true;
  }
  return inet_pton(AF_INET6, text.c_str(), address.data()) == 1;
}

Expected<AllowedPeers::Rule> AllowedPeers::parse_rule(std::string_view entry) {
  const auto wrong = [&] {
    return fail(
        StatusCode::kInvalidArgument,
        fmt::format("'{}' is no peer, allowed are any, or IP addresses and networks with or "
                    "without a port: 10.0.0.1, 10.0.0.0/24:5600, [fd00::1]:5600",
                    entry));
  };
  std::string_view network = entry;
  std::string_view port;
  if (entry.starts_with('[')) {
    const std::size_t end = entry.find(']');
    if (end == std::string_view::npos || (end + 1 < entry.size() && entry[end + 1] != ':')) {
      return wrong();
    }
    network = entry.substr(1, end - 1);
    port = entry.substr(std::min(end + 2, entry.size()));
    if (port.empty() && entry.ends_with(':')) {
      return wrong();
    }
  } else if (std::ranges::count(entry, ':') == 1) {
    const std::size_t colon = entry.find(':');
    network = entry.substr(0, colon);
    port = entry.substr(colon + 1);
    if (port.empty()) {
      return wrong();
    }
  }
  Rule rule;
  if (!port.empty()) {
    const auto number = number_in(port, 1, kLastPort);
    if (!number) {
      return wrong();
    }
    rule.port = *number;
  }
  const std::size_t slash = network.find('/');
  const std::string address(network.substr(0, slash));
  if (!read_address(address == "localhost" ? "127.0.0.1" : address, rule.network)) {
    return wrong();
  }
  const int first_bit = address.find(':') == std::string::npos ? kV4Bits : 0;
  rule.bits = kAllBits;
  if (slash != std::string_view::npos) {
    const auto bits = number_in(network.substr(slash + 1), 0, kAllBits - first_bit);
    if (!bits) {
      return wrong();
    }
    rule.bits = first_bit + *bits;
  }
  return rule;
}

Expected<AllowedPeers> AllowedPeers::parse(std::string_view list) {
  AllowedPeers peers;
  peers.is_default_ = false;
  peers.rules_.clear();
  if (list == "any") {
    peers.rules_.push_back({});
    return peers;
  }
  while (true) {
    const std::size_t comma = list.find(',');
    auto rule = parse_rule(list.substr(0, comma));
    if (!rule) {
      return fail(std::move(rule.error()));
    }
    peers.rules_.push_back(*rule);
    if (comma == std::string_view::npos) {
      return peers;
    }
    list.remove_prefix(comma + 1);
  }
}

bool AllowedPeers::allow(const std::string& host, int port) const {
  Address address{};
  return read_address(host, address) && std::ranges::any_of(rules_, [&](const Rule& rule) {
           return is_equal(rule.network, address, rule.bits) &&
                  (rule.port == 0 || rule.port == port);
         });
}

}  // namespace karez
