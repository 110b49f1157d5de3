#include "base/check.h"

#include <gtest/gtest.h>

#include <string>

namespace karez {
namespace {

TEST(Check, PassesSilentlyAndEvaluatesTheConditionOnce) {
  int evaluations = 0;
  KAREZ_CHECK(++evaluations == 1, "never shown");
  EXPECT_EQ(evaluations, 1);
}

TEST(Check, BuildsTheMessageOnlyOnFailure) {
  bool built = false;
  const auto message = [&] {
    built = true;
    return std::string("costly");
  };
  KAREZ_CHECK(true, message());
  EXPECT_FALSE(built);
}

TEST(CheckDeathTest, FailureNamesFileConditionAndMessage) {
  const int slots = -1;
  EXPECT_DEATH(KAREZ_CHECK(slots >= 0, "slots are counted from 0"),
               "check_test.cpp:[0-9]+: check failed: slots >= 0: slots are counted from 0");
}

}  // namespace
}  // namespace karez
