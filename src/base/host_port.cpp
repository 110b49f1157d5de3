#include "base/host_port.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <system_error>

namespace karez {

Expected<HostPort> split_host_port(std::string_view text) {
  HostPort parts;
  std::size_t colon = std::string_view::npos;
  if (text.starts_with('[')) {
    const std::size_t end = text.find(']');
    if (end == std::string_view::npos) {
      return fail(StatusCode::kInvalidArgument, "has no ] after its address");
    }
    parts.was_bracketed = true;
    parts.host = text.substr(1, end - 1);
    if (end + 1 < text.size()) {
      colon = end + 1;
      if (text[colon] != ':') {
        return fail(StatusCode::kInvalidArgument, "has more than a port after ]");
      }
    }
  } else {
    colon = std::ranges::count(text, ':') == 1 ? text.find(':') : std::string_view::npos;
    parts.host = text.substr(0, colon);
  }
  if (colon != std::string_view::npos) {
    parts.port = text.substr(colon + 1);
  }
  return parts;
}

std::string host_and_port(std::string_view host, int port) {
  const bool is_v6 = host.find(':') != std::string_view::npos;
  return fmt::format("{}{}{}:{}", is_v6 ? "[" : "", host, is_v6 ? "]" : "", port);
}

std::optional<int> parse_port(std::string_view text) { return parse_number(text, 1, kMaxPort); }

std::optional<int> parse_number(std::string_view text, int least, int most) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_whole = error == std::errc() && end == text.data() + text.size();
  if (!is_whole || text.front() == '-' || value < least || value > most) {
    return std::nullopt;
  }
  return value;
}

}  // namespace karez
