#include "kv/store/redis_address.h"

#include <fmt/format.h>

#include <cstddef>
#include <optional>
#include <span>
#include <utility>

#include "base/hex.h"
#include "base/host_port.h"

namespace karez {
namespace {

constexpr int kMaxDatabase = 65'535;

std::optional<std::string> percent_decoded(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    std::byte byte = {};
    if (!parse_hex(text.substr(i + 1, 2), std::span(&byte, 1))) {
      return std::nullopt;
    }
    out += static_cast<char>(byte);
    i += 2;
  }
  return out;
}

tl::unexpected<Status> wrong_url(std::string_view what) {
  return fail(
      StatusCode::kInvalidArgument,
      fmt::format("{}; allowed is redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE], or rediss:// "
                  "for TLS",
                  what));
}

Expected<void> read_user(std::string_view text, RedisAddress& address) {
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos || colon + 1 == text.size()) {
    return wrong_url("it has a user without a password");
  }
  auto user = percent_decoded(text.substr(0, colon));
  auto password = percent_decoded(text.substr(colon + 1));
  if (!user || !password) {
    return wrong_url("its user or password has a % without two hexadecimal digits");
  }
  address.user = std::move(*user);
  address.password = std::move(*password);
  return {};
}

}  // namespace

std::string RedisAddress::host_and_port() const { return karez::host_and_port(host, port); }

std::string RedisAddress::to_string() const {
  return fmt::format("{}://{}/{}", use_tls ? "rediss" : "redis", host_and_port(), database);
}

Expected<RedisAddress> parse_redis_address(std::string_view url) {
  constexpr std::string_view kPlain = "redis://";
  constexpr std::string_view kTls = "rediss://";
  RedisAddress address;
  address.use_tls = url.starts_with(kTls);
  if (!address.use_tls && !url.starts_with(kPlain)) {
    return wrong_url("it does not begin with redis:// or rediss://");
  }
  url.remove_prefix(address.use_tls ? kTls.size() : kPlain.size());
  if (const std::size_t at = url.rfind('@'); at != std::string_view::npos) {
    if (auto read = read_user(url.substr(0, at), address); !read) {
      return fail(std::move(read.error()));
    }
    url.remove_prefix(at + 1);
  }
  if (const std::size_t slash = url.find('/'); slash != std::string_view::npos) {
    const auto database = parse_number(url.substr(slash + 1), 0, kMaxDatabase);
    if (!database) {
      return wrong_url(fmt::format("its database is not 0 to {}", kMaxDatabase));
    }
    address.database = *database;
    url = url.substr(0, slash);
  }
  const auto parts = split_host_port(url);
  if (!parts) {
    return wrong_url("it " + parts.error().message());
  }
  if (parts->host.empty()) {
    return wrong_url("it has no host");
  }
  if (!parts->was_bracketed && parts->host.find(':') != std::string_view::npos) {
    return wrong_url("its host has colons (an IPv6 address stands in [ ])");
  }
  address.host = parts->host;
  if (parts->port) {
    const auto port = parse_port(*parts->port);
    if (!port) {
      return wrong_url(fmt::format("its port is not 1 to {}", kMaxPort));
    }
    address.port = *port;
  }
  return address;
}

}  // namespace karez
