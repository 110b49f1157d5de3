#include "remote/request_key.h"

#include <fmt/format.h>

#include <span>

#include "base/hex.h"
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
  RequestKey key;
  if (!parse_hex(text, std::as_writable_bytes(std::span(key.bytes)))) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("a request key has {} characters, allowed are 32 hexadecimal digits",
                            text.size()));
  }
  return key;
}

std::string RequestKey::to_string() const { return to_hex(std::as_bytes(std::span(bytes))); }

}  // namespace karez
