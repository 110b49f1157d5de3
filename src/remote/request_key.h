// RequestKey: names one exported request, and is the right to fetch it. 128 random bits.
//
// Thread: values.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace karez {

struct RequestKey {
  std::array<std::uint8_t, 16> bytes = {};

  // From the system's random source. Fails: kInternal if that has none.
  static Expected<RequestKey> random();
  // 32 hexadecimal digits. Fails: kInvalidArgument.
  static Expected<RequestKey> parse(std::string_view text);
  std::string to_string() const;

  friend auto operator<=>(const RequestKey&, const RequestKey&) = default;
};

}  // namespace karez
