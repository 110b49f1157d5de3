#include "server/transfer_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "server/generation_json.h"
#include "server/generation_request.h"
#include "support/server/fake_codec.h"
#include "support/server/fake_engine.h"

namespace karez {
namespace transfer_fields_test {

using ::testing::HasSubstr;

constexpr const char* kProduce = R"({"do_remote_decode":true,"do_remote_prefill":false,
    "remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null})";

ApiResult<GenerationRequest> completion(KvRole role, const std::string& params,
                                        const std::string& fields = R"("prompt":"hi")",
                                        const AllowedPeers& allowed = {}) {
  const FakeCodec codec;
  const ModelInfo model = {.name = "m",
                           .context_tokens = 200,
                           .max_num_seqs = 4,
                           .kv_role = role,
                           .allowed_peers = allowed};
  const std::string body = "{" + fields + R"(,"kv_transfer_params":)" + params + "}";
  return parse_generation_request(ApiKind::kCompletion, *parse_json_object(body), "", model, codec);
}

// A consumer's parameters with one key set to another value.
std::string consume_with(const std::string& key, const Json& value) {
  Json params = transfer_json(FakeEngine::produced());
  params[key] = value;
  return params.dump();
}

TEST(TransferFields, AProducerIsAskedInTheWordsOfVllmsProxies) {
  const auto parsed = completion(KvRole::kProducer, kProduce);
  ASSERT_TRUE(parsed.has_value()) << parsed.error().message;
  EXPECT_EQ(parsed->prompts[0].kv_transfer, KvTransfer{});
}

TEST(TransferFields, WhatAProducerAnsweredIsWhatAConsumerTakes) {
  KvTransfer expected = FakeEngine::produced();
  expected.role = KvTransfer::Role::kConsume;
  for (const KvRole role : {KvRole::kConsumer, KvRole::kBoth}) {
    const auto parsed = completion(role, transfer_json(FakeEngine::produced()).dump());
    ASSERT_TRUE(parsed.has_value()) << parsed.error().message;
    EXPECT_EQ(parsed->prompts[0].kv_transfer, expected);
  }
}

TEST(TransferFields, WithoutATrueFlagNothingIsTransferred) {
  for (const char* params : {"null", "{}", R"({"do_remote_decode":false,"remote_port":-1})",
                             R"({"max_load_tokens":5,"remote_host":7})"}) {
    const auto parsed = completion(KvRole::kNone, params);
    ASSERT_TRUE(parsed.has_value()) << params << parsed.error().message;
    EXPECT_FALSE(parsed->prompts[0].kv_transfer.has_value());
  }
}

TEST(TransferFields, KeysOfVllmThatWeDoNotUseAreIgnored) {
  EXPECT_TRUE(completion(KvRole::kBoth, consume_with("remote_block_ids", {1, 2})).has_value());
  EXPECT_TRUE(completion(KvRole::kBoth, consume_with("tp_size", 1)).has_value());
}

TEST(TransferFields, WrongOnesAreA400ThatNamesThem) {
  struct Case {
    std::string params;
    const char* param;
    const char* says;
  };
  for (const Case& bad : {
           Case{"7", "", "objects"},
           {R"({"do_remote_decode":1})", ".do_remote_decode", "true and false"},
           {R"({"do_remote_decode":true,"do_remote_prefill":true})", ".do_remote_decode", "one of"},
           {consume_with("remote_host", ""), ".remote_host", "1 to 255 bytes"},
           {consume_with("remote_host", std::string(256, 'x')), ".remote_host", "256 bytes"},
           {consume_with("remote_host", 7), ".remote_host", "strings"},
           {consume_with("remote_port", 0), ".remote_port", "from 1 to 65535"},
           {consume_with("remote_port", 65'536), ".remote_port", "65536"},
           {consume_with("remote_port", nullptr), ".remote_port", "absent"},
           {consume_with("remote_engine_id", nullptr), ".remote_engine_id", "absent"},
           {consume_with("remote_engine_id", std::string(129, 'x')), ".remote_engine_id", "128"},
           {consume_with("remote_request_id", "12"), ".remote_request_id", "32 digits"},
           {consume_with("remote_request_id", std::string(32, 'G')), ".remote_request_id",
            "0 to f"},
           {consume_with("remote_request_id", nullptr), ".remote_request_id", "absent"},
       }) {
    const auto parsed = completion(KvRole::kBoth, bad.params);
    ASSERT_FALSE(parsed.has_value()) << bad.params;
    EXPECT_EQ(parsed.error().http_status, 400);
    EXPECT_EQ(parsed.error().param, std::string("kv_transfer_params") + bad.param);
    EXPECT_THAT(parsed.error().message, HasSubstr(bad.says));
  }
}

TEST(TransferFields, AConsumerConnectsToNobodyButItsPeers) {
  for (const char* host : {"10.0.0.1", "169.254.169.254", "localhost", "0.0.0.0"}) {
    const auto parsed = completion(KvRole::kConsumer, consume_with("remote_host", host));
    ASSERT_FALSE(parsed.has_value()) << host;
    EXPECT_EQ(parsed.error().http_status, 400);
    EXPECT_EQ(parsed.error().param, "kv_transfer_params.remote_host");
    EXPECT_THAT(parsed.error().message, HasSubstr("--kv-allow-peers"));
  }
  const auto listed = AllowedPeers::parse("10.0.0.1:5600").value();
  EXPECT_TRUE(completion(KvRole::kConsumer, consume_with("remote_host", "10.0.0.1"),
                         R"("prompt":"hi")", listed)
                  .has_value());
  EXPECT_FALSE(completion(KvRole::kConsumer, consume_with("remote_host", "127.0.0.1"),
                          R"("prompt":"hi")", listed)
                   .has_value());
}

TEST(TransferFields, AServerWithoutTheRoleSaysWhichFlagIsNeeded) {
  const std::string consume = transfer_json(FakeEngine::produced()).dump();
  for (const KvRole role : {KvRole::kNone, KvRole::kConsumer}) {
    const auto parsed = completion(role, kProduce);
    ASSERT_FALSE(parsed.has_value());
    EXPECT_THAT(parsed.error().message, HasSubstr("--kv-role kv_producer or kv_both"));
  }
  for (const KvRole role : {KvRole::kNone, KvRole::kProducer}) {
    const auto parsed = completion(role, consume);
    ASSERT_FALSE(parsed.has_value());
    EXPECT_THAT(parsed.error().message, HasSubstr("--kv-role kv_consumer or kv_both"));
  }
}

TEST(TransferFields, OneRequestMovesTheKvOfOnePrompt) {
  const std::string consume = transfer_json(FakeEngine::produced()).dump();
  EXPECT_EQ(completion(KvRole::kBoth, kProduce, R"("prompt":"hi","n":2)").error().param, "n");
  EXPECT_TRUE(completion(KvRole::kBoth, consume, R"("prompt":"hi","n":2)").has_value());
  for (const std::string& params : {std::string(kProduce), consume}) {
    EXPECT_EQ(completion(KvRole::kBoth, params, R"("prompt":["a","b"])").error().param, "prompt");
  }
}

TEST(TransferFields, AnAnswerAndTheLastChunkOfAStreamTellWhereTheKvIs) {
  GenerationEvent event;
  event.finished = FinishReason::kLength;
  event.text = "x";
  event.kv_transfer = FakeEngine::produced();
  for (const ApiKind kind : {ApiKind::kChat, ApiKind::kCompletion}) {
    GenerationRequest request;
    request.kind = kind;
    request.prompts.resize(1);
    GenerationJson whole(request, ModelInfo{}, "id", 0);
    whole.take(0, event);
    EXPECT_EQ(Json::parse(whole.whole())["kv_transfer_params"], transfer_json(*event.kv_transfer));
    request.stream = true;
    GenerationJson stream(request, ModelInfo{}, "id", 0);
    const std::string text = stream.take(0, event);
    const std::size_t last = text.rfind("data: ");
    EXPECT_EQ(text.find("kv_transfer_params"), text.rfind("kv_transfer_params"));
    EXPECT_EQ(Json::parse(text.substr(last + 6))["kv_transfer_params"]["remote_port"], 5600);
  }
}

}  // namespace transfer_fields_test
}  // namespace karez
