#include "sampling/utf8.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace karez {
namespace {

constexpr const char* kReplacement = "\xEF\xBF\xBD";

TEST(Utf8, AcceptsEveryLengthOfCharacter) {
  EXPECT_EQ(first_invalid_utf8(""), std::nullopt);
  EXPECT_EQ(first_invalid_utf8("plain"), std::nullopt);
  EXPECT_EQ(first_invalid_utf8("\xC2\x80 \xDF\xBF \xE0\xA0\x80 \xEF\xBF\xBF"), std::nullopt);
  EXPECT_EQ(first_invalid_utf8("\xF0\x90\x80\x80 \xF4\x8F\xBF\xBF"), std::nullopt);
  EXPECT_EQ(first_invalid_utf8(std::string_view("a\0b", 3)), std::nullopt);
}

TEST(Utf8, NamesTheFirstByteOfWhatIsWrong) {
  const std::vector<std::pair<std::string, std::size_t>> cases = {
      {"ab\x80", 2},        // continuation alone
      {"ab\xC0\x80", 2},    // overlong, two bytes
      {"\xE0\x9F\xBF", 0},  // overlong, three bytes
      {"\xF0\x80\x80\x41", 0},
      {"x\xED\xA0\x80", 1},  // surrogate
      {"\xF4\x90\x80\x80", 0},
      {"\xF5\x80\x80\x80", 0},
      {"abc\xE2\x80", 3},  // cut off
      {"\xFF", 0},
  };
  for (const auto& [text, offset] : cases) {
    EXPECT_EQ(first_invalid_utf8(text), offset) << testing::PrintToString(text);
  }
}

std::string assemble(const std::vector<std::string>& pieces) {
  Utf8Assembler assembler;
  std::string text;
  for (const std::string& piece : pieces) {
    const std::string shown = assembler.push(piece);
    EXPECT_EQ(first_invalid_utf8(shown), std::nullopt);
    text += shown;
  }
  return text + assembler.finish();
}

TEST(Utf8Assembler, HoldsACharacterBackUntilItIsWhole) {
  Utf8Assembler assembler;
  EXPECT_EQ(assembler.push("a\xF0"), "a");
  EXPECT_EQ(assembler.push("\x9F"), "");
  EXPECT_EQ(assembler.push("\x98"), "");
  EXPECT_EQ(assembler.push("\x80z"), "\xF0\x9F\x98\x80z");
  EXPECT_EQ(assembler.finish(), "");
}

TEST(Utf8Assembler, EndsAnIncompleteCharacterWithOneReplacement) {
  EXPECT_EQ(assemble({"a\xF0\x9F\x98"}), std::string("a") + kReplacement);
  EXPECT_EQ(assemble({"\xE2"}), kReplacement);
  EXPECT_EQ(assemble({"a"}), "a");
}

TEST(Utf8Assembler, ReplacesWhatCanNeverBeACharacter) {
  const std::string r = kReplacement;
  EXPECT_EQ(assemble({"\xED\xA0\x80"}), r + r + r);
  EXPECT_EQ(assemble({"\xF0\x80\x80\x41"}), r + r + r + "A");
  EXPECT_EQ(assemble({"\xE2\x80\x41"}), r + "A");
  EXPECT_EQ(assemble({"\x80"}), r);
}

TEST(Utf8Assembler, TheCutDoesNotChangeTheText) {
  const std::string text = "h\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80 \xED\xA0\x80 \xF0\x80 \xE2\x82";
  const std::string whole = assemble({text});
  for (std::size_t first = 0; first <= text.size(); ++first) {
    for (std::size_t second = first; second <= text.size(); ++second) {
      EXPECT_EQ(assemble({text.substr(0, first), text.substr(first, second - first),
                          text.substr(second)}),
                whole)
          << first << ", " << second;
    }
  }
}

}  // namespace
}  // namespace karez
