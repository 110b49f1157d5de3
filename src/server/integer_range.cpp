#include "server/integer_range.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "base/check.h"

namespace karez {
namespace {

bool all_of(std::string_view digits, char digit) {
  return digits.find_first_not_of(digit) == std::string_view::npos;
}

std::string literal(std::string_view text) {
  return text.empty() ? std::string() : fmt::format("\"{}\" ", text);
}

std::string any_digits(std::size_t count) {
  return count == 0 ? std::string() : fmt::format(" [0-9]{{{}}}", count);
}

class Alternatives {
 public:
  // The numbers from low to high, which have the same number of digits, after `prefix`.
  void add(std::string prefix, std::string_view low, std::string_view high) {
    while (!low.empty() && low.front() == high.front()) {
      prefix += low.front();
      low.remove_prefix(1);
      high.remove_prefix(1);
    }
    if (low.empty()) {
      list_.push_back(literal(prefix));
      return;
    }
    char first = low.front();
    char last = high.front();
    low.remove_prefix(1);
    high.remove_prefix(1);
    if (!all_of(low, '0')) {
      add(prefix + first, low, std::string(low.size(), '9'));
      ++first;
    }
    const bool apart = !all_of(high, '9');
    const char highest = last;
    last = static_cast<char>(last - (apart ? 1 : 0));
    if (first <= last) {
      list_.push_back(
          fmt::format("{}[{}-{}]{}", literal(prefix), first, last, any_digits(low.size())));
    }
    if (apart) {
      add(prefix + highest, std::string(high.size(), '0'), high);
    }
  }

  // Requires: 0 <= low <= high.
  void add(const std::string& sign, std::int64_t low, std::int64_t high) {
    const std::string lowest = std::to_string(low);
    const std::string highest = std::to_string(high);
    for (std::size_t digits = lowest.size(); digits <= highest.size(); ++digits) {
      const std::string least = digits == 1 ? "0" : "1" + std::string(digits - 1, '0');
      add(sign, digits == lowest.size() ? lowest : least,
          digits == highest.size() ? highest : std::string(digits, '9'));
    }
  }

  std::string text() const { return fmt::format("{}", fmt::join(list_, " | ")); }

 private:
  std::vector<std::string> list_;
};

}  // namespace

std::string integer_range_grammar(std::int64_t low, std::int64_t high) {
  KAREZ_CHECK(-kLargestGrammarInteger <= low && low <= high && high <= kLargestGrammarInteger,
              "no range of integers");
  Alternatives alternatives;
  if (low < 0) {
    alternatives.add("-", -std::min<std::int64_t>(high, -1), -low);
  }
  if (high >= 0) {
    alternatives.add("", std::max<std::int64_t>(low, 0), high);
  }
  return alternatives.text();
}

}  // namespace karez
