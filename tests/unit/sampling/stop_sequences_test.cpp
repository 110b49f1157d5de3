#include "sampling/stop_sequences.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace karez {
namespace {

struct Case {
  std::vector<std::string> stops;
  std::string text;
  std::string shown;
  bool stopped;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {{}, "anything", "anything", false},
      {{"END"}, "one END two", "one ", true},
      {{"END"}, "END", "", true},
      {{"END"}, "no end here EN", "no end here EN", false},
      {{"DEFGHIJ"}, "ABCDEFGHIJKLMNOP", "ABC", true},
      {{"\n\nUser:"}, "text\n\nUse\n\nUser: x", "text\n\nUse", true},
      // One stop text as the beginning of another.
      {{"ab", "abcd"}, "xabcd", "x", true},
      {{"abcd", "ab"}, "xabx", "x", true},
      // One inside another: the one that is complete first wins.
      {{"abcd", "bc"}, "xabcd", "xa", true},
      // Ending at the same place: the longest wins.
      {{"aab", "aaab"}, "xaaab", "x", true},
      {{"aab", "aaab"}, "xaab", "x", true},
      // A failed beginning that overlaps the true one.
      {{"aab"}, "aaaab", "aa", true},
      {{"abac"}, "ababac", "ab", true},
      {{"a", "b", "c", "d", "e"}, "xyzcab", "xyz", true},
      {{"\xF0\x9F\x98\x80"}, "smile \xF0\x9F\x98\x80!", "smile ", true},
  };
  return all;
}

TEST(StopSequences, WholeTextInOnePiece) {
  for (const Case& c : cases()) {
    StopSequences stops(c.stops);
    std::string shown = stops.push(c.text);
    shown += stops.finish();
    EXPECT_EQ(shown, c.shown) << c.text;
    EXPECT_EQ(stops.stopped(), c.stopped) << c.text;
  }
}

TEST(StopSequences, TheCutDoesNotChangeTheResult) {
  std::mt19937 random(7);
  for (const Case& c : cases()) {
    for (int round = 0; round < 50; ++round) {
      StopSequences stops(c.stops);
      std::string shown;
      for (std::size_t at = 0; at < c.text.size();) {
        const std::size_t length = round == 0 ? 1 : 1 + random() % 4;
        shown += stops.push(c.text.substr(at, length));
        at += length;
        ASSERT_TRUE(c.shown.starts_with(shown)) << "part of a stop text was shown: " << c.text;
      }
      shown += stops.finish();
      EXPECT_EQ(shown, c.shown) << c.text;
      EXPECT_EQ(stops.stopped(), c.stopped) << c.text;
    }
  }
}

TEST(StopSequences, KeepsBackNoMoreThanItMust) {
  StopSequences stops({"END"});
  EXPECT_EQ(stops.push("one E"), "one ");
  EXPECT_EQ(stops.push("x"), "Ex");
  EXPECT_EQ(stops.push("EEN"), "E");
  EXPECT_EQ(stops.push("D and more"), "");
  EXPECT_TRUE(stops.stopped());
  EXPECT_EQ(stops.push("more"), "");
  EXPECT_EQ(stops.finish(), "");
}

TEST(StopSequences, AgreesWithASearchOfTheWholeText) {
  std::mt19937 random(11);
  const auto word = [&](std::size_t max_length) {
    std::string text;
    for (std::size_t i = 0, n = 1 + random() % max_length; i < n; ++i) {
      text += static_cast<char>('a' + random() % 2);
    }
    return text;
  };
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> texts;
    for (std::size_t i = 0, n = 1 + random() % 3; i < n; ++i) {
      texts.push_back(word(5));
    }
    const std::string text = word(16);
    // The first end of any stop text; at that end the longest.
    std::string expected = text;
    for (std::size_t end = 1, found = 0; end <= text.size() && found == 0; ++end) {
      for (const std::string& stop : texts) {
        if (stop.size() > found && text.substr(0, end).ends_with(stop)) {
          found = stop.size();
          expected = text.substr(0, end - found);
        }
      }
    }
    StopSequences stops(texts);
    std::string shown;
    for (const char c : text) {
      shown += stops.push(std::string(1, c));
    }
    shown += stops.finish();
    ASSERT_EQ(shown, expected) << text;
  }
}

}  // namespace
}  // namespace karez
