#include "kv/tier/throttle.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

#include "base/bytes.h"

namespace karez {

namespace {

constexpr std::string_view kPerSecond = "/s";
constexpr std::string_view kAllowed = "allowed are RATE/s, LATENCY or both, as in 2GiB/s,50us";
constexpr std::chrono::nanoseconds kMaxLatency = std::chrono::seconds(10);

tl::unexpected<Status> invalid(std::string_view text, std::string_view problem) {
  return fail(StatusCode::kInvalidArgument,
              fmt::format("the throttle is '{}': {}; {}", text, problem, kAllowed));
}

// Nothing if it is not a number with a unit of time.
std::optional<double> parse_nanoseconds(std::string_view part) {
  double number = 0.0;
  const auto [end, error] =
      std::from_chars(part.data(), part.data() + part.size(), number, std::chars_format::fixed);
  if (error != std::errc() || !std::isfinite(number)) {
    return std::nullopt;
  }
  const std::string_view unit = part.substr(static_cast<std::size_t>(end - part.data()));
  for (const auto& [name, nanoseconds] :
       {std::pair{"ns", 1.0}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}}) {
    if (unit == name) {
      return number * nanoseconds;
    }
  }
  return std::nullopt;
}

}  // namespace

Expected<Throttle> parse_throttle(std::string_view text) {
  Throttle throttle;
  std::string_view rest = text;
  const std::string_view first = rest.substr(0, rest.find(','));
  if (first.ends_with(kPerSecond)) {
    const Expected<std::int64_t> rate =
        parse_bytes(first.substr(0, first.size() - kPerSecond.size()));
    if (!rate) {
      return invalid(text, fmt::format("'{}' is no rate", first));
    }
    if (*rate < kKiB) {
      return invalid(text, fmt::format("'{}' is below 1KiB/s", first));
    }
    throttle.bytes_per_second = *rate;
    if (first.size() == rest.size()) {
      return throttle;
    }
    rest.remove_prefix(first.size() + 1);
  }
  const std::optional<double> nanoseconds = parse_nanoseconds(rest);
  if (!nanoseconds) {
    return invalid(text,
                   fmt::format("'{}' is neither RATE/s nor a latency in ns, us, ms or s", rest));
  }
  if (*nanoseconds < 0.0 || *nanoseconds > static_cast<double>(kMaxLatency.count())) {
    return invalid(text, fmt::format("the latency '{}' is not between 0s and 10s", rest));
  }
  throttle.latency = std::chrono::nanoseconds(std::llround(*nanoseconds));
  return throttle;
}

std::string to_string(const Throttle& throttle) {
  const double latency_us = static_cast<double>(throttle.latency.count()) / 1e3;
  return throttle.bytes_per_second == 0
             ? fmt::format("{:g} us", latency_us)
             : fmt::format("{}/s, {:g} us", format_bytes(throttle.bytes_per_second), latency_us);
}

}  // namespace karez
