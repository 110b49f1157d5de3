#include "server/api_error.h"

#include <gtest/gtest.h>

namespace karez {
namespace api_error_test {

TEST(ApiError, AClientFaultNamesTheFieldOfTheStatus) {
  const ApiError wrong =
      ApiError::from_status(Status(StatusCode::kInvalidArgument, "n is 9").with_field("n"));
  EXPECT_EQ(
      wrong.to_json(),
      R"({"error":{"code":null,"message":"n is 9","param":"n","type":"invalid_request_error"}})");
  const ApiError too_long =
      ApiError::from_status(Status(StatusCode::kResourceExhausted, "x").with_field("prompt"));
  EXPECT_EQ(too_long.http_status, 400);
  EXPECT_EQ(too_long.param, "prompt");
  EXPECT_EQ(too_long.code, "context_length_exceeded");
}

TEST(ApiError, WhereNoFieldIsAtFaultNoneIsNamed) {
  EXPECT_EQ(ApiError::from_status(Status(StatusCode::kInvalidArgument, "no")).param, "");
  const ApiError full = ApiError::from_status(Status(StatusCode::kUnavailable, "full"));
  EXPECT_EQ(full.http_status, 503);
  EXPECT_EQ(
      full.to_json(),
      R"({"error":{"code":"overloaded","message":"full","param":null,"type":"unavailable_error"}})");
}

}  // namespace api_error_test
}  // namespace karez
