#include "kv/tier/throttle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace karez {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using testing::HasSubstr;

TEST(Throttle, ReadsARateALatencyOrBoth) {
  const std::int64_t two_gib = std::int64_t{2} << 30U;
  EXPECT_EQ(parse_throttle("2GiB/s,50us"), (Throttle{two_gib, microseconds(50)}));
  EXPECT_EQ(parse_throttle("2GiB/s"), (Throttle{two_gib, {}}));
  EXPECT_EQ(parse_throttle("1.5ms"), (Throttle{0, microseconds(1500)}));
  EXPECT_EQ(parse_throttle("500MB/s,0s"), (Throttle{500'000'000, {}}));
  EXPECT_EQ(parse_throttle("1KiB/s,10s"), (Throttle{1024, milliseconds(10'000)}));
  EXPECT_EQ(parse_throttle("2G/s,100ns"), (Throttle{two_gib, std::chrono::nanoseconds(100)}));
}

TEST(Throttle, AnythingElseIsRefusedWithThePartThatIsWrong) {
  const auto message = [](std::string_view text) {
    const Expected<Throttle> throttle = parse_throttle(text);
    EXPECT_FALSE(throttle) << text;
    return throttle ? std::string() : throttle.error().message();
  };
  EXPECT_THAT(message(""), HasSubstr("the throttle is ''"));
  EXPECT_THAT(message("2GiB"), HasSubstr("'2GiB' is neither"));
  EXPECT_THAT(message("2GiB/s,"), HasSubstr("'' is neither"));
  EXPECT_THAT(message("2GiB/s,50"), HasSubstr("'50' is neither"));
  EXPECT_THAT(message("2GiB/s,50us,1"), HasSubstr("'50us,1' is neither"));
  EXPECT_THAT(message("fast/s"), HasSubstr("'fast/s' is no rate"));
  EXPECT_THAT(message("/s"), HasSubstr("'/s' is no rate"));
  EXPECT_THAT(message("0GiB/s"), HasSubstr("below 1KiB/s"));
  EXPECT_THAT(message("-1us"), HasSubstr("'-1us' is not between"));
  EXPECT_THAT(message("11s"), HasSubstr("'11s' is not between"));
  EXPECT_THAT(message("nan us"), HasSubstr("neither"));
  EXPECT_THAT(message("nanus"), HasSubstr("neither"));
  EXPECT_THAT(message("infs"), HasSubstr("neither"));
  EXPECT_THAT(message("1e3us"), HasSubstr("neither"));
  EXPECT_THAT(message("50us,2GiB/s"), HasSubstr("allowed are RATE/s, LATENCY or both"));
}

TEST(Throttle, IsWrittenAsItIsRead) {
  EXPECT_EQ(to_string(Throttle{std::int64_t{2} << 30U, microseconds(50)}), "2.0 GiB/s, 50 us");
  EXPECT_EQ(to_string(Throttle{0, milliseconds(2)}), "2000 us");
}

}  // namespace
}  // namespace karez
