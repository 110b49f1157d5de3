#include "sampling/sampling_params.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace karez {
namespace {

using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(SamplingParams, DefaultsAreValid) { EXPECT_TRUE(SamplingParams().validate()); }

TEST(SamplingParams, LimitsAreValid) {
  SamplingParams p;
  p.temperature = -1;
  p.top_k = 0;
  p.top_p = 0;
  p.min_p = 1;
  p.presence_penalty = -2;
  p.frequency_penalty = 2;
  p.repeat_last_n = -1;
  p.stop = {"a", "\xE2\x82\xAC"};
  const auto valid = p.validate();
  EXPECT_TRUE(valid) << valid.error().to_string();
}

TEST(SamplingParams, NamesTheFieldTheValueAndTheRange) {
  struct Case {
    std::function<void(SamplingParams&)> change;
    std::string message;
    std::string field;
  };
  const std::vector<Case> cases = {
      {[](SamplingParams& p) { p.temperature = kNan; }, "temperature is nan", "temperature"},
      {[](SamplingParams& p) { p.temperature = kInf; }, "temperature is inf", "temperature"},
      {[](SamplingParams& p) { p.temperature = -kInf; }, "temperature is -inf", "temperature"},
      {[](SamplingParams& p) { p.top_p = 1.5F; }, "top-p is 1.5, allowed are 0 to 1", "top_p"},
      {[](SamplingParams& p) { p.top_p = kNan; }, "top-p is nan", "top_p"},
      {[](SamplingParams& p) { p.min_p = -0.5F; }, "min-p is -0.5, allowed are 0 to 1", "min_p"},
      {[](SamplingParams& p) { p.typical_p = 2; }, "typical is 2, allowed are 0 to 1", "typical_p"},
      {[](SamplingParams& p) { p.repeat_penalty = 0; }, "repeat-penalty is 0", "repeat_penalty"},
      {[](SamplingParams& p) { p.presence_penalty = 3; }, "presence-penalty is 3",
       "presence_penalty"},
      {[](SamplingParams& p) { p.frequency_penalty = -3; }, "frequency-penalty is -3",
       "frequency_penalty"},
      {[](SamplingParams& p) { p.top_k = -1; }, "top-k is -1", "top_k"},
      {[](SamplingParams& p) { p.repeat_last_n = -2; }, "repeat-last-n is -2", "repeat_last_n"},
      {[](SamplingParams& p) {
         p.stop = {"a", ""};
       },
       "stop is an empty text", "stop"},
      {[](SamplingParams& p) { p.stop = {"ab\xFF"}; }, "stop is not UTF-8 at byte 2", "stop"},
  };
  for (const Case& c : cases) {
    SamplingParams params;
    c.change(params);
    const auto valid = params.validate();
    ASSERT_FALSE(valid) << c.message;
    EXPECT_EQ(valid.error().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(valid.error().message(), HasSubstr(c.message));
    EXPECT_EQ(valid.error().field(), c.field);
  }
}

}  // namespace
}  // namespace karez
