#include "base/bytes.h"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <utility>

namespace karez {

namespace {

// 0 if the unit is unknown.
long double unit_bytes(std::string_view unit) {
  std::string lower;
  for (const char c : unit) {
    lower.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
  }
  if (lower.empty() || lower == "b") {
    return 1;
  }
  constexpr std::string_view kPrefixes = "kmgt";
  const std::size_t power = kPrefixes.find(lower[0]);
  if (power == std::string_view::npos) {
    return 0;
  }
  const std::string_view rest = std::string_view(lower).substr(1);
  if (rest.empty() || rest == "ib") {
    return std::pow(1024.0L, static_cast<long double>(power + 1));
  }
  return rest == "b" ? std::pow(1000.0L, static_cast<long double>(power + 1)) : 0;
}

}  // namespace

Expected<std::int64_t> parse_bytes(std::string_view text) {
  const auto bad = [&] {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("'{}' is not a size in bytes; allowed are forms like 512MiB, 1.5GiB "
                            "or 1000000",
                            text));
  };
  // long double holds every std::int64_t exactly.
  long double number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (error != std::errc() || !std::isfinite(number) || std::signbit(number)) {
    return bad();
  }
  const char* unit = rest;
  while (unit != end && *unit == ' ') {
    ++unit;
  }
  const long double factor = unit_bytes({unit, static_cast<std::size_t>(end - unit)});
  constexpr long double kLimit = 9223372036854775808.0L;  // 2^63
  if (factor == 0 || number * factor >= kLimit) {
    return bad();
  }
  return static_cast<std::int64_t>(number * factor);
}

std::string format_bytes(std::int64_t bytes) {
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (std::abs(value) >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

}  // namespace karez
