#include "model/word_splitter.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace karez::test {
namespace word_splitter_test {

std::string times(const std::string& unit, std::size_t count) {
  std::string all;
  for (std::size_t i = 0; i < count; ++i) {
    all += unit;
  }
  return all;
}

TEST(WordSplitter, KnowsWhichNamesLibllamaHasALoopFor) {
  EXPECT_EQ(word_splitter_of("llama", ""), WordSplitter::kLoop);
  EXPECT_EQ(word_splitter_of("gpt2", "smollm"), WordSplitter::kLoop);
  EXPECT_EQ(word_splitter_of("gpt2", "qwen2"), WordSplitter::kLoop);
  EXPECT_EQ(word_splitter_of("gpt2", "tekken"), WordSplitter::kRegexOfLikeChars);
  EXPECT_EQ(word_splitter_of("gpt2", ""), WordSplitter::kRegexOfLikeChars);
  EXPECT_EQ(word_splitter_of("gpt2", "never heard of"), WordSplitter::kRegexWithinALine);
}

TEST(WordSplitter, FindsARunOfEachKindWithItsPlace) {
  for (const std::string unit :
       {"a", "Z", ".", "1", " ", "\n", "\t", "/", "aA", "\n/", "\xE4\xBD\xA0", "\xCC\x81",
        "\xE3\x80\x82", " \xE3\x80\x80", ".\xE2\x80\xA6", "a\xC3\xA9", "1\xEF\xBC\x91",
        "\xE4\xBD\xA0\xE2\x80\xA6"}) {
    const std::string before = "a, b 1; x\n(1)";
    EXPECT_FALSE(find_long_run(before + times(unit, 1000), WordSplitter::kRegexOfLikeChars));
    const auto run =
        find_long_run(before + times(unit, 3000) + ", 1 a", WordSplitter::kRegexOfLikeChars);
    ASSERT_TRUE(run) << unit;
    // What stands beside it may belong to it.
    EXPECT_GE(run->characters, 3000U) << unit;
    EXPECT_LE(run->begin, before.size()) << unit;
    EXPECT_GE(run->begin, before.size() - 2) << unit;
    EXPECT_EQ(run->allowed, 2048U);
    EXPECT_FALSE(find_long_run(times(unit, 3000), WordSplitter::kLoop));
  }
  const auto letters =
      find_long_run("1 " + std::string(5000, 'x') + " 2", WordSplitter::kRegexOfLikeChars);
  ASSERT_TRUE(letters);
  EXPECT_EQ(letters->begin, 2U);
  EXPECT_EQ(letters->characters, 5000U);
  EXPECT_EQ(letters->what, "letters");
}

TEST(WordSplitter, LeavesOrdinaryTextsAlone) {
  for (const std::string& text : {
           times("The quick brown fox jumps over the lazy dog. ", 2000),
           times("if (a < b) {\n\treturn x[1] / 2;  // done\n}\n\n", 2000),
           // Chinese: no white space, marks of its own.
           times("\xE4\xBD\xA0\xE5\xA5\xBD\xEF\xBC\x8C\xE4\xB8\x96\xE7\x95\x8C\xE3\x80\x82", 5000),
           times("3.14159, ", 5000),
           std::string(2048, 'a'),
       }) {
    EXPECT_FALSE(find_long_run(text, WordSplitter::kRegexOfLikeChars)) << text.substr(0, 40);
  }
}

TEST(WordSplitter, LinesCountWhereAMatchMayBeAnything) {
  const std::string words = times("a b1. ", 1000);
  EXPECT_FALSE(find_long_run(words + "\n" + words + "\n" + words, WordSplitter::kRegexWithinALine));
  EXPECT_FALSE(find_long_run(words + words, WordSplitter::kRegexOfLikeChars));
  const auto line = find_long_run("x\n" + words + words, WordSplitter::kRegexWithinALine);
  ASSERT_TRUE(line);
  EXPECT_EQ(line->begin, 2U);
  EXPECT_EQ(line->characters, 12'000U);
  EXPECT_EQ(line->allowed, 8192U);
}

}  // namespace word_splitter_test
}  // namespace karez::test
