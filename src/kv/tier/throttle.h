// Throttle: the speed of a medium that this machine does not have, and how people write it.
//
// Thread: values.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace karez {

struct Throttle {
  std::int64_t bytes_per_second = 0;  // 0: no limit
  std::chrono::nanoseconds latency = {};

  friend bool operator==(const Throttle&, const Throttle&) = default;
};

// "2GiB/s,50us", or one of the two. Rates: a byte quantity (base/bytes.h), at least 1KiB, and "/s".
// Latencies: a decimal number and ns, us, ms or s, up to 10s.
// Fails: kInvalidArgument, saying which part is wrong and what is allowed.
Expected<Throttle> parse_throttle(std::string_view text);

// "2.0 GiB/s, 50 us".
std::string to_string(const Throttle& throttle);

}  // namespace karez
