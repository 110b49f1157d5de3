#include "attention/memory_bandwidth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace karez {
namespace {

TEST(MemoryBandwidth, IsAPositiveFiniteFigureForAnyNumberOfThreads) {
  for (const int num_threads : {1, 2, 3}) {
    const auto rate = measure_read_bandwidth(num_threads, kMiB, 2);
    ASSERT_TRUE(rate.has_value());
    EXPECT_GT(*rate, 0.0);
    EXPECT_LT(*rate, 1e15);
  }
}

TEST(MemoryBandwidth, RefusesNoThreadsAndMemoryThatIsNotThere) {
  const auto none = measure_read_bandwidth(0, kMiB, 1);
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(none.error().message(), testing::HasSubstr("0 threads"));
  EXPECT_FALSE(measure_read_bandwidth(1, std::int64_t{1} << 60, 1).has_value());
}

}  // namespace
}  // namespace karez
