#include "kv/store/redis_address.h"

#include <fmt/format.h>

#include <cstddef>
#include <optional>
#include <utility>

namespace karez {
namespace {

constexpr int kMaxPort = 65'535;
constexpr int kMaxDatabase = 65'535;

int hex_digit(char c) {
  return c >= '0' && c <= '9'   ? c - '0'
         : c >= 'a' && c <= 'f' ? c - 'a' + 10
         : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                : -1;
}

std::optional<std::string> percent_decoded(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    const int high = i + 1 < text.size() ? hex_digit(text[i + 1]) : -1;
    const int low = i + 2 < text.size() ? hex_digit(text[i + 2]) : -1;
    if (high < 0 || low < 0) {
      return std::nullopt;
    }
    out += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return out;
}

// -1: not a number in [0, most].
int number_of(std::string_view text, int most) {
  int value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9' || value > most) {
      return -1;
    }
    value = value * 10 + (c - '0');
  }
  return text.empty() || value > most ? -1 : value;
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

std::string RedisAddress::host_and_port() const {
  const bool is_v6 = host.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", is_v6 ? "[" : "", host, is_v6 ? "]" : "", port);
}

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
    address.database = number_of(url.substr(slash + 1), kMaxDatabase);
    if (address.database < 0) {
      return wrong_url(fmt::format("its database is not 0 to {}", kMaxDatabase));
    }
    url = url.substr(0, slash);
  }
  std::string_view port;
  if (url.starts_with('[')) {
    const std::size_t end = url.find(']');
    if (end == std::string_view::npos) {
      return wrong_url("its address has no ]");
    }
    address.host = url.substr(1, end - 1);
    port = url.substr(end + 1);
  } else {
    const std::size_t colon = url.find(':');
    address.host = url.substr(0, colon);
    port = colon == std::string_view::npos ? std::string_view() : url.substr(colon);
  }
  if (!port.empty()) {
    address.port = port.front() == ':' ? number_of(port.substr(1), kMaxPort) : -1;
  }
  if (address.host.empty() || address.port < 1) {
    return wrong_url(address.host.empty() ? "it has no host" : "its port is not 1 to 65535");
  }
  return address;
}

}  // namespace karez
