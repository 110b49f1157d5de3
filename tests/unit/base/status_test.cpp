#include "base/status.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace karez {
namespace {

Expected<int> half_of(int number) {
  if (number % 2 != 0) {
    return fail(StatusCode::kInvalidArgument, "number is odd");
  }
  return number / 2;
}

Expected<std::string> half_as_text(int number) {
  auto half = half_of(number);
  if (!half) {
    return fail(half.error());
  }
  return std::to_string(*half);
}

TEST(Status, TextIsTheCodeThenTheMessage) {
  const Status status(StatusCode::kInvalidArgument, "--token-budget is 12");
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "--token-budget is 12");
  EXPECT_EQ(status.to_string(), "invalid argument: --token-budget is 12");
}

TEST(Status, NamesAFieldIfOneIsAtFault) {
  EXPECT_EQ(Status(StatusCode::kIoError, "the disk is gone").field(), "");
  const Status status = Status(StatusCode::kResourceExhausted, "too long").with_field("prompt");
  EXPECT_EQ(status.field(), "prompt");
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(status.to_string(), "resource exhausted: too long");
}

TEST(Status, EveryCodeHasANameOfItsOwn) {
  std::set<std::string_view> names;
  const int last = static_cast<int>(StatusCode::kInternal);
  for (int code = 0; code <= last; ++code) {
    names.insert(to_string(static_cast<StatusCode>(code)));
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(last) + 1);
  EXPECT_FALSE(names.contains("unknown"));
}

TEST(Expected, HoldsAValueOrTheReasonWhyNot) {
  EXPECT_EQ(half_of(8).value(), 4);
  ASSERT_FALSE(half_of(7).has_value());
  EXPECT_EQ(half_of(7).error().message(), "number is odd");
}

TEST(Expected, AFieldAtFaultIsAnInvalidArgument) {
  const Expected<int> refused = fail_field("n", "n is 0");
  EXPECT_EQ(refused.error().field(), "n");
  EXPECT_EQ(refused.error().to_string(), "invalid argument: n is 0");
}

TEST(Expected, PassesAStatusOnUnchanged) {
  EXPECT_EQ(half_as_text(8).value(), "4");
  ASSERT_FALSE(half_as_text(7).has_value());
  EXPECT_EQ(half_as_text(7).error().to_string(), "invalid argument: number is odd");
}

}  // namespace
}  // namespace karez
