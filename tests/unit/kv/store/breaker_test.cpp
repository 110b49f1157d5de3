#include "kv/store/breaker.h"

#include <gtest/gtest.h>

#include "support/tier/fake_clock.h"

namespace karez::test {
namespace breaker_test {

using std::chrono::seconds;

TEST(Breaker, OpensAfterFailuresInARow) {
  FakeClock clock;
  Breaker breaker;
  EXPECT_FALSE(breaker.fail(clock.now(), "broken", false));
  EXPECT_FALSE(breaker.fail(clock.now(), "broken", false));
  EXPECT_FALSE(breaker.succeed());
  EXPECT_FALSE(breaker.fail(clock.now(), "broken", false));
  EXPECT_FALSE(breaker.fail(clock.now(), "broken", false));
  EXPECT_TRUE(breaker.allow(clock.now()));
  EXPECT_TRUE(breaker.fail(clock.now(), "broken", false));
  EXPECT_FALSE(breaker.allow(clock.now()));
}

TEST(Breaker, TriesOnceAfterEachPauseAndSaysAReasonOnce) {
  FakeClock clock;
  Breaker breaker;
  EXPECT_TRUE(breaker.fail(clock.now(), "full", true));
  clock.advance(seconds(5));
  EXPECT_TRUE(breaker.allow(clock.now()));
  EXPECT_FALSE(breaker.allow(clock.now()));
  EXPECT_FALSE(breaker.fail(clock.now(), "full", true));
  clock.advance(seconds(5));
  EXPECT_FALSE(breaker.allow(clock.now()));  // the pause is longer now
  clock.advance(seconds(5));
  EXPECT_TRUE(breaker.allow(clock.now()));
  clock.advance(seconds(30));
  EXPECT_TRUE(breaker.allow(clock.now()));  // that trial never ended
  EXPECT_TRUE(breaker.succeed());
  EXPECT_TRUE(breaker.allow(clock.now()));
  EXPECT_TRUE(breaker.fail(clock.now(), "full", true));
}

}  // namespace breaker_test
}  // namespace karez::test
