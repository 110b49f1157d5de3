#include "engine/allowed_peers.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/host_port.h"

namespace karez {
namespace {

bool is_equal(const IpAddress& a, const IpAddress& b, int bits) {
  for (int i = 0; i < bits; i += 8) {
    const std::size_t at = static_cast<std::size_t>(i / 8);
    const int ignored = std::max(0, 8 - (bits - i));
    if (a.bytes[at] >> ignored != b.bytes[at] >> ignored) {
      return false;
    }
  }
  return true;
}

}  // namespace

AllowedPeers::AllowedPeers() : rules_(loopback()) {}

std::vector<AllowedPeers::Rule> AllowedPeers::loopback() {
  return {Rule{*parse_ip_address("127.0.0.0"), IpAddress::kV4Bits + 8, 0},
          Rule{*parse_ip_address("::1"), IpAddress::kBits, 0}};
}

bool AllowedPeers::go_beyond_loopback() const {
  const std::vector<Rule> here = loopback();
  return std::ranges::any_of(rules_, [&](const Rule& rule) {
    return std::ranges::none_of(here, [&](const Rule& one) {
      return rule.bits >= one.bits && is_equal(rule.network, one.network, one.bits);
    });
  });
}

Expected<AllowedPeers::Rule> AllowedPeers::parse_rule(std::string_view entry) {
  const auto wrong = [&] {
    return fail(
        StatusCode::kInvalidArgument,
        fmt::format("'{}' is no peer, allowed are any, or IP addresses and networks with or "
                    "without a port: 10.0.0.1, 10.0.0.0/24:5600, [fd00::1]:5600",
                    entry));
  };
  const auto parts = split_host_port(entry);
  const auto port = parts && parts->port ? parse_port(*parts->port) : 0;
  if (!parts || !port) {
    return wrong();
  }
  Rule rule;
  rule.port = *port;
  const std::size_t slash = parts->host.find('/');
  const std::string_view address = parts->host.substr(0, slash);
  const auto network = parse_ip_address(address == "localhost" ? "127.0.0.1" : address);
  if (!network) {
    return wrong();
  }
  rule.network = *network;
  const int first_bit = address.find(':') == std::string_view::npos ? IpAddress::kV4Bits : 0;
  rule.bits = IpAddress::kBits;
  if (slash != std::string_view::npos) {
    const auto bits = parse_number(parts->host.substr(slash + 1), 0, IpAddress::kBits - first_bit);
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
  const auto address = parse_ip_address(host);
  return address && std::ranges::any_of(rules_, [&](const Rule& rule) {
           return is_equal(rule.network, *address, rule.bits) &&
                  (rule.port == 0 || rule.port == port);
         });
}

}  // namespace karez
