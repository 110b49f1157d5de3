// Which ways to compress `karez eval --generate` compares.
#include "cli/eval_generate_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <vector>

namespace karez {
namespace eval_generate_flags_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

Expected<std::vector<CompressionOptions>> parse(std::vector<std::string> arguments) {
  CLI::App app;
  EvalGenerateFlags flags;
  add_eval_generate_flags(app, flags);
  std::ranges::reverse(arguments);
  app.parse(arguments);
  return compressions_of(flags);
}

// "random fixed=16" and so on.
std::vector<std::string> ways_of(const std::vector<std::string>& arguments) {
  const auto all = parse(arguments);
  EXPECT_TRUE(all) << all.error().message();
  std::vector<std::string> ways;
  for (const CompressionOptions& options : all.value()) {
    ways.push_back(std::string(to_string(options.score)) + " " + options.chunk_name());
  }
  return ways;
}

TEST(EvalGenerateFlags, WithoutGenerateThereIsNoWay) { EXPECT_THAT(ways_of({}), IsEmpty()); }

TEST(EvalGenerateFlags, TheDefaultWayIsTriedAtThreeRatios) {
  const auto all = parse({"--generate"});
  ASSERT_TRUE(all);
  std::vector<double> keeps;
  for (const CompressionOptions& options : *all) {
    keeps.push_back(options.keep);
    EXPECT_EQ(options.score, CompressionOptions{}.score);
    EXPECT_EQ(options.chunk_name(), CompressionOptions{}.chunk_name());
    EXPECT_EQ(options.archive, CompressionOptions{}.archive);
  }
  EXPECT_THAT(keeps, ElementsAre(0.75, 0.5, 0.2));
}

TEST(EvalGenerateFlags, EveryScoreHasEveryChunkButRecent) {
  EXPECT_THAT(ways_of({"--generate", "--compress-keep", "0.5", "--compress-score", "all",
                       "--compress-chunk", "all"}),
              UnorderedElementsAre(
                  "bidirectional token2chunk", "bidirectional none", "bidirectional fixed=16",
                  "causal token2chunk", "causal none", "causal fixed=16",
                  "last-queries token2chunk", "last-queries none", "last-queries fixed=16",
                  "random token2chunk", "random none", "random fixed=16", "recent none"));
}

TEST(EvalGenerateFlags, RecentIsOneWayWhateverTheChunks) {
  EXPECT_THAT(ways_of({"--generate", "--compress-keep", "0.5", "--compress-score", "recent,random",
                       "--compress-chunk", "fixed=16,fixed=32"}),
              ElementsAre("recent none", "random fixed=16", "random fixed=32"));
}

TEST(EvalGenerateFlags, ArchivesAndRatiosMultiplyAndRepetitionsDoNot) {
  const auto all =
      parse({"--generate", "--compress-keep", "0.75,0.5", "--compress-archive", "all,off",
             "--compress-score", "random,random", "--compress-chunk", "none,token2chunk,none"});
  ASSERT_TRUE(all) << all.error().message();
  EXPECT_EQ(all->size(), 2U * 2U * 2U);
}

TEST(EvalGenerateFlags, AWrongChunkIsNamedThoughRecentHasNone) {
  const auto wrong = parse({"--generate", "--compress-score", "recent", "--compress-chunk", "big"});
  ASSERT_FALSE(wrong);
  EXPECT_THAT(wrong.error().message(), HasSubstr("--compress-chunk is \"big\""));
  const auto unused = parse({"--compress-chunk", "none"});
  ASSERT_FALSE(unused);
  EXPECT_THAT(unused.error().message(), HasSubstr("--compress-chunk has no effect"));
}

}  // namespace eval_generate_flags_test
}  // namespace karez
