#include "remote/request_key.h"

#include <fmt/format.h>

#include "remote/peer_secret.h"

namespace karez {

Expected<RequestKey> RequestKey::random() {
  RequestKey key;
  if (std::optional<Status> problem = fill_random(key.bytes)) {
    return fail(std::move(*problem));
  }
  return key;
}

Expected<RequestKey> RequestKey::parse(std::string_view text) {
  const auto wrong = [&] {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("a request key has {} characters, allowed are 32 hexadecimal digits",
                            text.size()));
  };
  RequestKey key;
  if (text.size() != 2 * key.bytes.size()) {
    return wrong();
  }
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char digit = text[i];
    unsigned value = 0;
    if (digit >= '0' && digit <= '9') {
      value = static_cast<unsigned>(digit - '0');
    } else if (digit >= 'a' && digit <= 'f') {
      value = static_cast<unsigned>(digit - 'a') + 10;
    } else if (digit >= 'A' && digit <= 'F') {
      value = static_cast<unsigned>(digit - 'A') + 10;
    } else {
      return wrong();
    }
    key.bytes[i / 2] = static_cast<std::uint8_t>(unsigned{key.bytes[i / 2]} << 4U | value);
  }
  return key;
}

std::string RequestKey::to_string() const {
  std::string text;
  for (const std::uint8_t byte : bytes) {
    text += fmt::format("{:02x}", byte);
  }
  return text;
}

}  // namespace karez
