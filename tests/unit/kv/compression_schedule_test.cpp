#include "kv/compression_schedule.h"

#include <gtest/gtest.h>

namespace karez {
namespace {

TEST(CompressionSchedule, IsOffUntilItHasAWindow) {
  EXPECT_FALSE(CompressionSchedule{}.is_on());
  EXPECT_TRUE((CompressionSchedule{0, 32, 16, 0, false}.is_on()));
}

TEST(CompressionSchedule, AWindowIsPublishedWhenTheRecentTokensLieBehindIt) {
  const CompressionSchedule schedule{64, 1024, 512, 500, false};
  EXPECT_EQ(schedule.begin_of(0), 64);
  EXPECT_EQ(schedule.publication_of(0), 64 + 1024 + 500);
  EXPECT_EQ(schedule.begin_of(1), 64 + 1024);
  EXPECT_EQ(schedule.publication_of(1), 64 + 2 * 1024 + 500);
}

TEST(CompressionSchedule, FarPositionsDoNotOverflow) {
  const CompressionSchedule schedule{0, 1 << 20, 16, 1 << 20, false};
  EXPECT_EQ(schedule.begin_of(5000), std::int64_t{5000} << 20);
  EXPECT_EQ(schedule.publication_of(5000), std::int64_t{5002} << 20);
}

TEST(CompressionSchedule, OnlyDroppedTokensAreGone) {
  EXPECT_EQ((CompressionSchedule{0, 1024, 256, 512, false}.gone_tokens_each()), 768);
  EXPECT_EQ((CompressionSchedule{0, 1024, 256, 512, true}.gone_tokens_each()), 0);
}

}  // namespace
}  // namespace karez
