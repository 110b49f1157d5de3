#include "server/integer_range.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <regex>
#include <string>
#include <string_view>
#include <utility>

namespace karez {
namespace {

// Literals, classes and counts mean in a regular expression what they mean in GBNF, once the quotes
// and the blanks are gone.
std::regex as_regex(std::int64_t low, std::int64_t high) {
  std::string text;
  for (const char c : integer_range_grammar(low, high)) {
    if (c != '"' && c != ' ') {
      text += c;
    }
  }
  return std::regex(text);
}

TEST(IntegerRange, MatchesExactlyItsIntegers) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 300; ++round) {
    const std::int64_t span = round < 200 ? 130 : 2500;
    const auto draw = [&] {
      return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(2 * span + 1)) - span;
    };
    std::int64_t low = draw();
    std::int64_t high = draw();
    if (low > high) {
      std::swap(low, high);
    }
    const std::regex range = as_regex(low, high);
    for (std::int64_t i = -span - 10; i <= span + 10; ++i) {
      ASSERT_EQ(std::regex_match(std::to_string(i), range), low <= i && i <= high)
          << i << " in " << low << " to " << high << ": " << integer_range_grammar(low, high);
    }
  }
}

TEST(IntegerRange, MatchesAtBothEndsOfLongNumbers) {
  const std::int64_t values[] = {1'000'000'000'000'000, 9'999'999'999'999'998, 123'456'789'012,
                                 999'999'999, 1'000'000'000};
  for (const std::int64_t low : values) {
    for (const std::int64_t high : values) {
      if (low > high) {
        continue;
      }
      const std::regex above = as_regex(low, high);
      const std::regex below = as_regex(-high, -low);
      for (const std::int64_t i : {low - 1, low, low + 1, high - 1, high, high + 1}) {
        EXPECT_EQ(std::regex_match(std::to_string(i), above), low <= i && i <= high) << i;
        EXPECT_EQ(std::regex_match(std::to_string(-i), below), low <= i && i <= high) << -i;
      }
    }
  }
}

TEST(IntegerRange, HasNoOtherWayToWriteANumber) {
  const std::regex range = as_regex(-kLargestGrammarInteger, kLargestGrammarInteger);
  for (const char* text : {"", "-", "-0", "00", "007", "+1", "1.0", "1e3", "10000000000000000"}) {
    EXPECT_FALSE(std::regex_match(text, range)) << text;
  }
  EXPECT_TRUE(std::regex_match("0", range));
  EXPECT_TRUE(std::regex_match("9999999999999999", range));
}

}  // namespace
}  // namespace karez
