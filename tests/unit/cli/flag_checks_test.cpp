#include "cli/flag_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace karez::test {
namespace flag_checks_test {

using testing::HasSubstr;

TEST(FlagChecks, AContextIsWhatTheModelWasTrainedForAtMost) {
  EXPECT_EQ(context_tokens_of(0, 8192).value(), 8192);
  EXPECT_EQ(context_tokens_of(2, 8192).value(), 2);
  EXPECT_EQ(context_tokens_of(8192, 8192).value(), 8192);
  for (const std::int64_t wrong :
       {std::int64_t{-1}, std::int64_t{1}, std::int64_t{8193}, std::int64_t{1} << 40U}) {
    const auto context = context_tokens_of(wrong, 8192);
    ASSERT_FALSE(context) << wrong;
    EXPECT_THAT(context.error().message(),
                HasSubstr("-c is " + std::to_string(wrong) + ", allowed are 2 to 8192"));
  }
}

TEST(FlagChecks, ASizeThatIsNotGivenIsNone) {
  EXPECT_EQ(optional_size("--kv-fast-bytes", "").value(), std::nullopt);
  EXPECT_EQ(optional_size("--kv-fast-bytes", "2MiB").value(), 2 << 20);
  EXPECT_EQ(optional_size("--kv-fast-bytes", "0").value(), 0);
  const auto wrong = optional_size("--kv-fast-bytes", "much");
  ASSERT_FALSE(wrong);
  EXPECT_THAT(wrong.error().message(), HasSubstr("--kv-fast-bytes: "));
  EXPECT_THAT(wrong.error().message(), HasSubstr("much"));
}

}  // namespace flag_checks_test
}  // namespace karez::test
