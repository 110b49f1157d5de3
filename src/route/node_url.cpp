#include "route/node_url.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

namespace karez {
namespace {

constexpr std::string_view kScheme = "http://";
constexpr std::size_t kMaxHostBytes = 253;
constexpr int kHttpPort = 80;
constexpr int kMaxPort = 65'535;

bool is_host_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_';
}

bool is_path_character(char c) {
  return c > ' ' && c < '\x7f' && c != '?' && c != '#' && c != '"' && c != '\\';
}

std::optional<int> port_of(std::string_view text) {
  int port = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), port);
  const bool whole = read.ec == std::errc() && read.ptr == text.data() + text.size();
  if (!whole || port < 1 || port > kMaxPort) {
    return std::nullopt;
  }
  return port;
}

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return result;
}

}  // namespace

std::string NodeUrl::authority() const {
  const bool is_v6 = host.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", is_v6 ? "[" : "", host, is_v6 ? "]" : "", port);
}

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
  std::string_view authority = rest.substr(0, path_begin);
  NodeUrl url;
  url.port = kHttpPort;
  std::string_view port;
  bool has_port = false;
  if (authority.starts_with('[')) {
    const std::size_t end = authority.find(']');
    if (end == std::string_view::npos) {
      return wrong("has no ] after its address");
    }
    url.host = lower(authority.substr(1, end - 1));
    const bool is_address =
        url.host.find(':') != std::string::npos && std::ranges::all_of(url.host, [](char c) {
          return c == ':' || c == '.' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
        });
    if (!is_address) {
      return wrong("has no IPv6 address between [ and ]");
    }
    authority.remove_prefix(end + 1);
    has_port = !authority.empty();
    if (has_port && authority.front() != ':') {
      return wrong("has more than a port after ]");
    }
    port = authority.substr(has_port ? 1 : 0);
  } else {
    const std::size_t colon = authority.find(':');
    has_port = colon != std::string_view::npos;
    url.host = lower(authority.substr(0, colon));
    port = has_port ? authority.substr(colon + 1) : std::string_view();
    if (url.host.empty() || url.host.size() > kMaxHostBytes ||
        !std::ranges::all_of(url.host, is_host_character)) {
      return wrong("has no host name or address (an IPv6 address stands in [ ])");
    }
  }
  if (has_port) {
    const auto number = port_of(port);
    if (!number) {
      return wrong(fmt::format("has the port '{}', allowed are 1 to {}", port, kMaxPort));
    }
    url.port = *number;
  }
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
