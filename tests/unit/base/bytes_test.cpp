#include "base/bytes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace karez {
namespace {

TEST(ParseBytes, ReadsNumbersWithAndWithoutUnits) {
  const std::vector<std::pair<std::string, std::int64_t>> cases = {
      {"0", 0},
      {"512", 512},
      {"1000000", 1'000'000},
      {"7B", 7},
      {"64KiB", 64 * kKiB},
      {"64kib", 64 * kKiB},
      {"64 KiB", 64 * kKiB},
      {"64K", 64 * kKiB},
      {"64k", 64 * kKiB},
      {"64KB", 64'000},
      {"3MiB", 3 * kMiB},
      {"3M", 3 * kMiB},
      {"3mb", 3'000'000},
      {"1.5GiB", 3 * kGiB / 2},
      {"2G", 2 * kGiB},
      {"2GB", 2'000'000'000},
      {"2TiB", 2048 * kGiB},
      {"2T", 2048 * kGiB},
      {"2TB", 2'000'000'000'000},
      {"0.5", 0},
      {"9007199254740993", 9007199254740993},  // 2^53 + 1: a double would lose the last bit
      {"9223372036854775807", std::numeric_limits<std::int64_t>::max()},
  };
  for (const auto& [text, bytes] : cases) {
    const auto parsed = parse_bytes(text);
    ASSERT_TRUE(parsed.has_value()) << text;
    EXPECT_EQ(*parsed, bytes) << text;
  }
}

TEST(ParseBytes, RefusesEverythingElseAndNamesIt) {
  const std::vector<std::string> cases = {"",
                                          "KiB",
                                          "-1",
                                          "-0",
                                          "+1",
                                          "1e3",
                                          "0x10",
                                          "inf",
                                          "nan",
                                          "5 PiB",
                                          "5 Ki",
                                          "5kk",
                                          "5iB",
                                          "5KiBs",
                                          "1,5GiB",
                                          "1 2",
                                          " 5",
                                          "five",
                                          "5GiB ",
                                          "1..5G",
                                          "--5",
                                          "5\tKiB",
                                          "9223372036854775808",
                                          "8388608TiB",
                                          std::string(400, '9')};
  for (const std::string& text : cases) {
    const auto parsed = parse_bytes(text);
    ASSERT_FALSE(parsed.has_value()) << text << " was read as " << *parsed;
    EXPECT_EQ(parsed.error().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(parsed.error().message(), testing::StartsWith("'" + text + "' is not a size"));
    EXPECT_THAT(parsed.error().message(), testing::HasSubstr("512MiB"));
  }
}

TEST(FormatBytes, UsesBinaryUnitsWithOneDecimal) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.0 KiB");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(191'260'262), "182.4 MiB");
  EXPECT_EQ(format_bytes(3 * kGiB), "3.0 GiB");
  EXPECT_EQ(format_bytes(5 * 1024 * kGiB), "5.0 TiB");
  EXPECT_EQ(format_bytes(5000 * 1024 * kGiB), "5000.0 TiB");
  EXPECT_EQ(format_bytes(-2048), "-2.0 KiB");
}

}  // namespace
}  // namespace karez
