#include "kv/compression_schedule.h"

#include <gtest/gtest.h>

namespace karez {
namespace {

TEST(CompressionSchedule, IsOffUntilItHasAWindow) {
  EXPECT_FALSE(CompressionSchedule{}.is_on());
  EXPECT_TRUE((CompressionSchedule{0, 32, 16, 0, 0}.is_on()));
}

TEST(CompressionSchedule, AWindowIsPublishedWhenTheRecentTokensLieBehindIt) {
  const CompressionSchedule schedule{64, 1024, 512, 500, 0};
  EXPECT_EQ(schedule.begin_of(0), 64);
  EXPECT_EQ(schedule.publication_of(0), 64 + 1024 + 500);
  EXPECT_EQ(schedule.begin_of(1), 64 + 1024);
  EXPECT_EQ(schedule.publication_of(1), 64 + 2 * 1024 + 500);
}

TEST(CompressionSchedule, FarPositionsDoNotOverflow) {
  const CompressionSchedule schedule{0, 1 << 20, 16, 1 << 20, 0};
  EXPECT_EQ(schedule.begin_of(5000), std::int64_t{5000} << 20);
  EXPECT_EQ(schedule.publication_of(5000), std::int64_t{5002} << 20);
}

TEST(CompressionSchedule, AWindowBecomesItsKeptAndItsArchivedBlocks) {
  const CompressionSchedule dropping{0, 1024, 256, 512, 0};
  EXPECT_EQ(dropping.kept_blocks(), 16);
  EXPECT_EQ(dropping.archived_blocks(), 0);
  const CompressionSchedule archiving{0, 1024, 256, 512, 3};
  EXPECT_EQ(archiving.archived_pages(), 48);
  EXPECT_EQ(archiving.archived_blocks(), 16);
  EXPECT_EQ((CompressionSchedule{0, 1024, 512, 512, 3}.archived_blocks()), 11);
}

TEST(CompressionSchedule, ASequenceHoldsOneUncompressedWindowBesidesTheCompressedOnes) {
  const CompressionSchedule schedule{64, 1024, 256, 512, 0};
  EXPECT_EQ(schedule.most_tokens_held(1500), 1500);
  EXPECT_EQ(schedule.most_tokens_held(1600), 1600);  // there is no room to save yet
  EXPECT_EQ(schedule.most_tokens_held(64 + 512 + 4 * 1024), 64 + 4 * 256 + 1024 + 512);
  EXPECT_EQ(CompressionSchedule{}.most_tokens_held(5000), 5000);
}

}  // namespace
}  // namespace karez
