#include "route/node_url.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/host_port.h"
#include "base/ip_address.h"

namespace karez {
namespace {

constexpr std::string_view kScheme = "http://";
constexpr std::size_t kMaxHostBytes = 253;
constexpr int kHttpPort = 80;

bool is_host_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_';
}

bool is_path_character(char c) {
  return c > ' ' && c < '\x7f' && c != '?' && c != '#' && c != '"' && c != '\\';
}

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return result;
}

}  // namespace

std::string NodeUrl::authority() const { return host_and_port(host, port); }

std::string NodeUrl::text() const { return fmt::format("http://{}{}", authority(), base_path); }

Expected<NodeUrl> parse_node_url(std::string_view text) {
  const auto wrong = [text](std::string_view what) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("'{}' {}, needed is http://HOST:PORT", text, what));
  };
  if (lower(text.substr(0, 8)) == "https://") {
    return wrong("is https, which is not spoken to nodes");
  }
  if (lower(text.substr(0, kScheme.size())) != kScheme) {
    return wrong("does not begin with http://");
  }
  const std::string_view rest = text.substr(kScheme.size());
  const std::size_t path_begin = std::min(rest.find('/'), rest.size());
  const auto parts = split_host_port(rest.substr(0, path_begin));
  if (!parts) {
    return wrong(parts.error().message());
  }
  NodeUrl url;
  url.host = lower(parts->host);
  if (parts->was_bracketed) {
    if (url.host.find(':') == std::string::npos || !parse_ip_address(url.host)) {
      return wrong("has no IPv6 address between [ and ]");
    }
  } else if (url.host.empty() || url.host.size() > kMaxHostBytes ||
             !std::ranges::all_of(url.host, is_host_character)) {
    return wrong("has no host name or address (an IPv6 address stands in [ ])");
  }
  const auto port = parts->port ? parse_port(*parts->port) : kHttpPort;
  if (!port) {
    return wrong(fmt::format("has the port '{}', allowed are 1 to {}", *parts->port, kMaxPort));
  }
  url.port = *port;
  std::string_view path = rest.substr(path_begin);
  while (path.ends_with('/')) {
    path.remove_suffix(1);
  }
  if (!std::ranges::all_of(path, is_path_character)) {
    return wrong("has a path with characters that no path has");
  }
  url.base_path = std::string(path);
  return url;
}

}  // namespace karez
