#include "route/two_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace karez {
namespace two_step_test {

RoutedRequest read(const std::string& body, const std::string& key = "") {
  auto request = read_routed_request(body, key);
  EXPECT_TRUE(request.has_value()) << request.error().message;
  return std::move(*request);
}

TEST(TwoStep, TheFirstStepAsksForOneTokenAndForTheKv) {
  const std::string prefill = read(R"({"prompt":"hi","stream":true,"max_completion_tokens":9,
      "stream_options":{"include_usage":true},"min_tokens":3,"n":2,"best_of":2,"logprobs":2,
      "temperature":0.5,"unknown":[1.5,"\u00e9"]})")
                                  .prefill_body;
  EXPECT_EQ(Json::parse(prefill), Json::parse(R"({"prompt":"hi","stream":false,
      "max_completion_tokens":1,"temperature":0.5,"unknown":[1.5,"\u00e9"],"max_tokens":1,
      "kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false}})"));
}

TEST(TwoStep, TheSecondStepIsTheClientsRequestWithThePlaceOfTheKv) {
  const std::string body = R"({"messages":[{"role":"user","content":"hi"}],"n":2,"seed":-1})";
  const Json transfer = {{"do_remote_prefill", true}, {"anything", {1, 2}}};
  EXPECT_EQ(decode_body(read(body), nullptr), body) << "byte for byte";
  Json expected = Json::parse(body);
  expected["kv_transfer_params"] = transfer;
  EXPECT_EQ(Json::parse(decode_body(read(body), transfer)), expected);
  EXPECT_EQ(decode_body(read("{ \n}\n"), {{"a", 1}}), "{ \n\"kv_transfer_params\":{\"a\":1}}");
}

TEST(TwoStep, AnAnswerWithoutParametersHandsNothingOver) {
  EXPECT_EQ(transfer_of_answer(R"({"kv_transfer_params":{"a":1}})"), Json({{"a", 1}}));
  for (const char* answer : {"", "x", "[]", "{}", R"({"kv_transfer_params":null})",
                             R"({"kv_transfer_params":{}})", R"({"kv_transfer_params":7})"}) {
    EXPECT_TRUE(transfer_of_answer(answer).is_null()) << answer;
  }
}

TEST(TwoStep, OnlyOnePromptIsHandedOver) {
  EXPECT_NE(read(R"({"prompt":"a"})").prefill_body, "");
  EXPECT_NE(read(R"({"prompt":[1,2,3]})").prefill_body, "");
  EXPECT_NE(read(R"({"prompt":["a"]})").prefill_body, "");
  EXPECT_EQ(read(R"({"prompt":["a","b"]})").prefill_body, "");
  EXPECT_EQ(read(R"({"prompt":[[1],[2]]})").prefill_body, "");
}

TEST(TwoStep, PromptsWithOneBeginningHaveOneHash) {
  const std::string system = std::string(3000, 's');
  const auto chat = [&](const std::string& system_text, const std::string& user) {
    return R"({"messages":[{"role":"system","content":")" + system_text +
           R"("},{"role":"user","content":")" + user + R"("}]})";
  };
  const std::uint64_t hash = read(chat(system, "a")).prefix_hash;
  EXPECT_EQ(read(chat(system, "b")).prefix_hash, hash);
  EXPECT_NE(read(chat("t" + system, "a")).prefix_hash, hash);
  EXPECT_NE(read(chat(system, "a"), "Bearer key").prefix_hash, hash) << "another key";
  EXPECT_NE(read(R"({"prompt":[1,2]})").prefix_hash, read(R"({"prompt":[1,3]})").prefix_hash);
}

TEST(TwoStep, ClientsDoNotSayWhereKvIs) {
  const auto refused =
      read_routed_request(R"({"prompt":"a","kv_transfer_params":{"remote_host":"10.0.0.1"}})", "");
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().http_status, 400);
  EXPECT_EQ(refused.error().param, "kv_transfer_params");
  EXPECT_EQ(decode_body(read(R"({"prompt":"a","kv_transfer_params":null})"), nullptr),
            R"({"prompt":"a"})");
  EXPECT_FALSE(read_routed_request("[1]", "").has_value());
}

}  // namespace two_step_test
}  // namespace karez
