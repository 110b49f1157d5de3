#include "base/hex.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <string>

namespace karez {
namespace hex_test {

TEST(Hex, EveryByteIsTwoDigitsAndComesBack) {
  std::array<std::byte, 256> bytes;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(i);
  }
  const std::string text = to_hex(bytes);
  ASSERT_EQ(text.size(), 512U);
  EXPECT_TRUE(text.starts_with("000102030405060708090a0b0c0d0e0f10"));
  EXPECT_TRUE(text.ends_with("fdfeff"));
  std::array<std::byte, 256> again = {};
  EXPECT_TRUE(parse_hex(text, again));
  EXPECT_EQ(again, bytes);
  EXPECT_EQ(to_hex({}), "");
}

TEST(Hex, BothCasesAreReadAndNothingElse) {
  std::array<std::byte, 2> bytes = {};
  EXPECT_TRUE(parse_hex("aBCd", bytes));
  EXPECT_EQ(bytes[0], std::byte{0xAB});
  EXPECT_EQ(bytes[1], std::byte{0xCD});
  for (const char* text : {"", "abc", "abcde", "abcg", "ab d", "0xab", "ab:d", "ab@d", "ab/d"}) {
    EXPECT_FALSE(parse_hex(text, bytes)) << text;
  }
  EXPECT_TRUE(is_lower_hex("0123456789abcdef"));
  EXPECT_TRUE(is_lower_hex(""));
  for (const char* text : {"A", "g", "0x", " ", "`", "/"}) {
    EXPECT_FALSE(is_lower_hex(text)) << text;
  }
}

}  // namespace hex_test
}  // namespace karez
