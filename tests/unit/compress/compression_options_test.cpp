#include "compress/compression_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

namespace karez {
namespace {

using testing::HasSubstr;

std::string error_of(const Expected<void>& status) {
  return status ? "" : status.error().to_string();
}

using Change = std::function<void(CompressionOptions&)>;

std::string error_after(const Change& change) {
  CompressionOptions options;
  change(options);
  return error_of(options.validate());
}

TEST(CompressionOptions, DefaultsAreValid) {
  EXPECT_EQ(error_of(CompressionOptions{}.validate()), "");
  EXPECT_EQ(CompressionOptions{}.kept_tokens(), 256);
}

TEST(CompressionOptions, LimitsAreAllowed) {
  const Change allowed[] = {
      [](auto& o) { o.keep = 1e-6; },
      [](auto& o) { o.keep = 0.999999; },
      [](auto& o) { o.window_tokens = 32; },
      [](auto& o) { o.window_tokens = 48; },
      [](auto& o) { o.window_tokens = 1 << 16; },
      [](auto& o) { o.recent_tokens = 0; },
      [](auto& o) { o.recent_tokens = 1 << 16; },
      [](auto& o) { o.sequences_per_step = 1; },
      [](auto& o) { o.chunk = CompressChunk::kFixed, o.fixed_chunk_tokens = 256; },
      // Only kFixed reads it.
      [](auto& o) { o.chunk = CompressChunk::kNone, o.fixed_chunk_tokens = 100000; },
  };
  for (const Change& change : allowed) {
    EXPECT_EQ(error_after(change), "");
  }
}

TEST(CompressionOptions, ErrorsNameTheFieldItsValueAndWhatIsAllowed) {
  const struct {
    Change change;
    std::string text;
  } cases[] = {
      {[](auto& o) { o.keep = 0; }, "compress-keep is 0, allowed are numbers above 0 and below 1"},
      {[](auto& o) { o.keep = 1; }, "compress-keep is 1, allowed are numbers above 0 and below 1"},
      {[](auto& o) { o.keep = -0.5; }, "compress-keep is -0.5,"},
      {[](auto& o) { o.keep = std::numeric_limits<double>::quiet_NaN(); }, "compress-keep is nan,"},
      {[](auto& o) { o.window_tokens = 0; },
       "compress-window is 0, allowed are multiples of 16 from 32 to 65536"},
      {[](auto& o) { o.window_tokens = 16; }, "compress-window is 16,"},
      {[](auto& o) { o.window_tokens = 1000; }, "compress-window is 1000,"},
      {[](auto& o) { o.window_tokens = -1024; }, "compress-window is -1024,"},
      {[](auto& o) { o.window_tokens = (1 << 16) + 16; }, "compress-window is 65552,"},
      {[](auto& o) { o.recent_tokens = -1; }, "compress-recent is -1, allowed are 0 to 65536"},
      {[](auto& o) { o.recent_tokens = (1 << 16) + 1; }, "compress-recent is 65537,"},
      {[](auto& o) { o.sequences_per_step = 0; }, "compress-per-step is 0, allowed are 1 and more"},
      {[](auto& o) { o.chunk = CompressChunk::kFixed, o.fixed_chunk_tokens = 257; },
       "compress-chunk is fixed=257, allowed are chunks of 1 to 256 tokens"},
      {[](auto& o) { o.chunk = CompressChunk::kFixed, o.fixed_chunk_tokens = 0; },
       "compress-chunk is fixed=0,"},
  };
  for (const auto& each : cases) {
    EXPECT_THAT(error_after(each.change), HasSubstr(each.text));
  }
}

TEST(CompressionOptions, KeptTokensAreWholeBlocksFewerThanTheWindow) {
  const struct {
    double keep;
    int window_tokens;
    int kept_tokens;
  } cases[] = {
      {0.5, 1024, 512},  {0.75, 1024, 768},   {0.2, 1024, 208},  // 12.8 blocks
      {0.25, 1024, 256}, {0.999, 1024, 1008}, {0.001, 1024, 16}, {0.5, 32, 16},
      {0.9, 32, 16},     {0.1, 32, 16},       {0.5, 48, 32},  // 1.5 blocks
  };
  for (const auto& each : cases) {
    CompressionOptions options;
    options.keep = each.keep;
    options.window_tokens = each.window_tokens;
    EXPECT_EQ(options.kept_tokens(), each.kept_tokens) << each.keep << " of " << each.window_tokens;
  }
}

TEST(CompressionOptions, EveryScoreAndArchiveIsFoundByItsName) {
  for (const CompressScore score :
       {CompressScore::kBidirectional, CompressScore::kCausal, CompressScore::kLastQueries,
        CompressScore::kRecent, CompressScore::kRandom}) {
    const Expected<CompressScore> parsed = parse_compress_score(to_string(score));
    ASSERT_TRUE(parsed.has_value()) << to_string(score);
    EXPECT_EQ(*parsed, score);
  }
  for (const CompressArchive archive : {CompressArchive::kR4, CompressArchive::kOff}) {
    const Expected<CompressArchive> parsed = parse_compress_archive(to_string(archive));
    ASSERT_TRUE(parsed.has_value()) << to_string(archive);
    EXPECT_EQ(*parsed, archive);
  }
}

TEST(CompressionOptions, UnknownNamesAreAnsweredWithTheList) {
  const Expected<CompressScore> score = parse_compress_score("Causal");
  ASSERT_FALSE(score.has_value());
  EXPECT_THAT(score.error().to_string(),
              HasSubstr("compress-score is \"Causal\", allowed are bidirectional, causal, "
                        "last-queries, recent, random"));
  const Expected<CompressArchive> archive = parse_compress_archive("");
  ASSERT_FALSE(archive.has_value());
  EXPECT_THAT(archive.error().to_string(),
              HasSubstr("compress-archive is \"\", allowed are r4, off"));
}

TEST(CompressionOptions, ChunkNamesSetTheRuleAndItsLength) {
  CompressionOptions options;
  ASSERT_EQ(error_of(options.set_chunk("none")), "");
  EXPECT_EQ(options.chunk, CompressChunk::kNone);
  ASSERT_EQ(error_of(options.set_chunk("fixed=12")), "");
  EXPECT_EQ(options.chunk, CompressChunk::kFixed);
  EXPECT_EQ(options.fixed_chunk_tokens, 12);
  ASSERT_EQ(error_of(options.set_chunk("token2chunk")), "");
  EXPECT_EQ(options.chunk, CompressChunk::kToken2Chunk);
  EXPECT_EQ(to_string(CompressChunk::kFixed), "fixed");
}

TEST(CompressionOptions, AChunkNameThatIsNoneChangesNothing) {
  for (const std::string name : {"", "fixed", "fixed=", "fixed=0", "fixed=-1", "fixed=8x",
                                 "fixed= 8", "fixed=99999999999", "Token2Chunk", "none "}) {
    CompressionOptions options;
    EXPECT_THAT(error_of(options.set_chunk(name)),
                HasSubstr("compress-chunk is \"" + name +
                          "\", allowed are token2chunk, none, fixed=N with N from 1"));
    EXPECT_EQ(options.chunk, CompressionOptions{}.chunk);
    EXPECT_EQ(options.fixed_chunk_tokens, CompressionOptions{}.fixed_chunk_tokens);
  }
}

TEST(CompressionOptions, TheScheduleBeginsBehindPromptAndSinksAtAWholeBlock) {
  const struct {
    int prompt_tokens;
    int sink_tokens;
    bool compresses_prompt;
    int first_position;
  } cases[] = {
      {100, 16, false, 112}, {96, 16, false, 96}, {0, 16, false, 16}, {5, 16, false, 16},
      {100, 16, true, 16},   {100, 20, true, 32}, {100, 0, true, 0},
  };
  for (const auto& each : cases) {
    CompressionOptions options;
    options.compresses_prompt = each.compresses_prompt;
    const CompressionSchedule schedule =
        schedule_of(options, each.prompt_tokens, each.sink_tokens, 3);
    EXPECT_EQ(schedule.first_position, each.first_position)
        << each.prompt_tokens << ", " << each.sink_tokens;
  }
}

TEST(CompressionOptions, TheScheduleHasTheOptionsNumbers) {
  CompressionOptions options;
  options.keep = 0.25;
  options.window_tokens = 256;
  options.recent_tokens = 100;
  options.archive = CompressArchive::kOff;
  const CompressionSchedule schedule = schedule_of(options, 50, 16, 3);
  EXPECT_TRUE(schedule.is_on());
  EXPECT_EQ(schedule.window_tokens, 256);
  EXPECT_EQ(schedule.kept_tokens, 64);
  EXPECT_EQ(schedule.recent_tokens, 100);
  EXPECT_EQ(schedule.pages_per_block, 0);
  EXPECT_FALSE(schedule.scores_with_rows(0, 64)) << "no window has any of them";
  EXPECT_TRUE(schedule.scores_with_rows(0, 65));
  EXPECT_TRUE(schedule.scores_with_rows(64, 1));
  EXPECT_FALSE(CompressionSchedule{}.scores_with_rows(64, 1));
  // 64 + 256, and a quarter of what is recent: where slots are short a window is compressed early.
  EXPECT_FALSE(schedule.may_be_early(0, 344));
  EXPECT_TRUE(schedule.may_be_early(0, 345));
  EXPECT_FALSE(schedule.may_be_early(0, 420)) << "it is due";
  options.archive = CompressArchive::kR4;
  EXPECT_EQ(schedule_of(options, 50, 16, 3).pages_per_block, 3);
}

}  // namespace
}  // namespace karez
