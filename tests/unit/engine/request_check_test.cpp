#include "engine/request_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <ostream>
#include <string>

namespace karez {
namespace request_check_test {

const RequestLimits kLimits{100, 50, 4};

Request good_request() {
  Request request;
  request.prompt = {1, 2, 3};
  return request;
}

struct Fault {
  std::string field;
  std::string message;
  std::function<void(Request&)> make;
};

void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.message; }

class CheckRequest : public testing::TestWithParam<Fault> {};

TEST_P(CheckRequest, NamesTheField) {
  Request request = good_request();
  ASSERT_TRUE(check_request(request, kLimits));
  GetParam().make(request);
  const auto checked = check_request(request, kLimits);
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(checked.error().message(), testing::HasSubstr(GetParam().message));
  EXPECT_EQ(checked.error().field(), GetParam().field);
}

INSTANTIATE_TEST_SUITE_P(
    Faults, CheckRequest,
    testing::Values(
        Fault{"prompt", "prompt has no tokens", [](Request& r) { r.prompt.clear(); }},
        Fault{"prompt", "prompt has 50 tokens", [](Request& r) { r.prompt.assign(50, 1); }},
        Fault{"prompt", "prompt has token -1", [](Request& r) { r.prompt[1] = -1; }},
        Fault{"prompt", "prompt has token 100", [](Request& r) { r.prompt[1] = 100; }},
        Fault{"n", "n is 0", [](Request& r) { r.num_choices = 0; }},
        Fault{"n", "n is 5", [](Request& r) { r.num_choices = 5; }},
        Fault{"max_tokens", "max_tokens is 0", [](Request& r) { r.max_tokens = 0; }},
        Fault{"max_tokens", "max_tokens is -2", [](Request& r) { r.max_tokens = -2; }},
        Fault{"min_tokens", "min_tokens is -1", [](Request& r) { r.min_tokens = -1; }},
        Fault{"min_tokens", "min_tokens is 9",
              [](Request& r) {
                r.min_tokens = 9;
                r.max_tokens = 8;
              }},
        Fault{"top_logprobs", "top_logprobs is 21", [](Request& r) { r.num_logprobs = 21; }},
        Fault{"stop_token_ids", "stop_token_ids has token 100",
              [](Request& r) { r.stop_token_ids = {100}; }},
        Fault{"logit_bias", "logit_bias has token -1",
              [](Request& r) {
                r.logit_bias = {{-1, 0.0F}};
              }},
        Fault{"logit_bias.1", "logit_bias of token 1 is 101",
              [](Request& r) {
                r.logit_bias = {{1, 101.0F}};
              }},
        Fault{"logit_bias.1", "logit_bias of token 1 is nan",
              [](Request& r) {
                r.logit_bias = {{1, std::numeric_limits<float>::quiet_NaN()}};
              }},
        Fault{"top_p", "top-p is 2", [](Request& r) { r.sampling.top_p = 2.0F; }}));

TEST(MaxAnswerTokens, IsCutToTheContext) {
  Request request = good_request();
  EXPECT_EQ(max_answer_tokens(request, kLimits), 47);
  request.max_tokens = 5;
  EXPECT_EQ(max_answer_tokens(request, kLimits), 5);
  request.max_tokens = std::numeric_limits<int>::max();
  EXPECT_EQ(max_answer_tokens(request, kLimits), 47);
  request.prompt.assign(49, 1);
  EXPECT_TRUE(check_request(request, kLimits));
  EXPECT_EQ(max_answer_tokens(request, kLimits), 1);
}

}  // namespace request_check_test
}  // namespace karez
