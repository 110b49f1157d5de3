// HOST:PORT as people write it, an IPv6 address in brackets: taking it apart and writing it.
//
// What a host may be is the caller's to say: a name, an address, a network.
// Thread: functions without state.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace karez {

struct HostPort {
  std::string_view host;                 // without brackets
  std::optional<std::string_view> port;  // what stands behind the colon; may be empty
  bool was_bracketed = false;
};

// "node:80", "node", "[::1]:80", "[::1]"; what has several colons and no brackets is a host without
// a port. The parts lie in the text.
// Fails: kInvalidArgument, "has no ] after its address" or "has more than a port after ]".
Expected<HostPort> split_host_port(std::string_view text);

// "node:80", "[::1]:80".
std::string host_and_port(std::string_view host, int port);

inline constexpr int kMaxPort = 65'535;
// None: it is not 1 to kMaxPort.
std::optional<int> parse_port(std::string_view text);
// Decimal digits and nothing else. None: it is none, or not in [least, most]; 0 <= least.
std::optional<int> parse_number(std::string_view text, int least, int most);

}  // namespace karez
