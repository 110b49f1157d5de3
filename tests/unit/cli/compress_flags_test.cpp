// The flags of compression, as typed.
#include "cli/compress_flags.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <vector>

namespace karez {
namespace compress_flags_test {

// What check_compression_is_used() says; empty: nothing.
std::string complaint(std::vector<std::string> arguments) {
  CLI::App app;
  CompressFlags flags;
  add_compress_flags(app, flags, "Compresses");
  std::ranges::reverse(arguments);
  app.parse(arguments);
  const auto used = check_compression_is_used(flags);
  return used ? "" : used.error().message();
}

TEST(CompressFlags, NoneIsTakenWithoutCompressionWhateverItsValue) {
  const std::vector<std::string> cases[] = {
      {"--compress-keep", "0.5"},  // the default
      {"--compress-keep", "0.25"},
      {"--compress-window", "512"},
      {"--compress-recent", "512"},
      {"--compress-per-step", "1"},
      {"--compress-prompt"},
      {"--compress-score", "bidirectional"},
      {"--compress-chunk", "fixed=16"},
      {"--compress-archive", "r4"},
  };
  for (const std::vector<std::string>& arguments : cases) {
    EXPECT_EQ(complaint(arguments), arguments.front() + " has no effect without --compress");
    std::vector<std::string> with = arguments;
    with.emplace_back("--compress");
    EXPECT_EQ(complaint(with), "");
  }
  EXPECT_EQ(complaint({}), "");
}

TEST(CompressFlags, EveryFlagArrives) {
  CLI::App app;
  CompressFlags flags;
  add_compress_flags(app, flags, "Compresses");
  std::vector<std::string> arguments = {"--compress",
                                        "--compress-keep",
                                        "0.25",
                                        "--compress-window",
                                        "256",
                                        "--compress-recent",
                                        "128",
                                        "--compress-per-step",
                                        "3",
                                        "--compress-prompt",
                                        "--compress-score",
                                        "causal",
                                        "--compress-chunk",
                                        "fixed=32",
                                        "--compress-archive",
                                        "off"};
  std::ranges::reverse(arguments);
  app.parse(arguments);
  const auto options = check_compress_flags(flags);
  ASSERT_TRUE(options) << options.error().message();
  EXPECT_TRUE(flags.compress);
  EXPECT_EQ(options->keep, 0.25);
  EXPECT_EQ(options->window_tokens, 256);
  EXPECT_EQ(options->recent_tokens, 128);
  EXPECT_EQ(options->sequences_per_step, 3);
  EXPECT_TRUE(options->compresses_prompt);
  EXPECT_EQ(options->score, CompressScore::kCausal);
  EXPECT_EQ(options->chunk_name(), "fixed=32");
  EXPECT_EQ(options->archive, CompressArchive::kOff);
}

}  // namespace compress_flags_test
}  // namespace karez
