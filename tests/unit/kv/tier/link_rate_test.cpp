#include "kv/tier/link_rate.h"

#include <gtest/gtest.h>

#include "base/bytes.h"
#include "support/tier/fake_clock.h"

namespace karez::test {
namespace {

using std::chrono::milliseconds;

class LinkRateTest : public testing::Test {
 protected:
  void after(milliseconds time, std::int64_t bytes, int num_results, int in_flight) {
    clock_.advance(time);
    rate_.note(clock_.now(), bytes, num_results, in_flight);
  }

  FakeClock clock_;
  LinkRate rate_;
};

TEST_F(LinkRateTest, IsUnknownUntilSomethingWasSeenToMove) {
  after(milliseconds(1), 0, 0, 0);
  after(milliseconds(1), 0, 0, 4);
  after(milliseconds(1), 1000, 1, 3);
  EXPECT_EQ(rate_.bytes_per_second(), 0) << "too few bytes to tell";
}

TEST_F(LinkRateTest, ABusyLinkIsMeasuredUpAndDown) {
  after(milliseconds(1), 0, 0, 1000);
  after(milliseconds(1), kMiB, 1, 999);
  EXPECT_DOUBLE_EQ(rate_.bytes_per_second(), 1000.0 * kMiB);
  for (int i = 0; i < 40; ++i) {
    after(milliseconds(10), kMiB, 1, 900);
  }
  EXPECT_NEAR(rate_.bytes_per_second(), 100.0 * kMiB, kMiB);
  for (int i = 0; i < 40; ++i) {
    after(milliseconds(1), kMiB, 1, 800);
  }
  EXPECT_NEAR(rate_.bytes_per_second(), 1000.0 * kMiB, 10 * kMiB);
}

TEST_F(LinkRateTest, APollThatComesLongAfterTheEndSaysNothingAgainstTheLink) {
  after(milliseconds(1), 0, 0, 8);
  after(milliseconds(1), kMiB, 8, 8);
  EXPECT_DOUBLE_EQ(rate_.bytes_per_second(), 1000.0 * kMiB);
  after(milliseconds(50), kMiB, 8, 0);
  EXPECT_DOUBLE_EQ(rate_.bytes_per_second(), 1000.0 * kMiB);
}

TEST_F(LinkRateTest, IdleTimeDoesNotCount) {
  after(milliseconds(1), 0, 0, 8);
  after(milliseconds(1), kMiB, 8, 0);
  after(milliseconds(500), 0, 0, 8);
  after(milliseconds(1), 2 * kMiB, 8, 0);
  EXPECT_DOUBLE_EQ(rate_.bytes_per_second(), 1250.0 * kMiB);
}

}  // namespace
}  // namespace karez::test
