#include "server/text_routes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "support/server/fake_codec.h"

namespace karez::test {
namespace text_routes_test {

using ::testing::HasSubstr;

// Of 40 tokens the routes say yes; the longest token of the fake codec has 12 bytes.
const ModelInfo kModel = {.name = "m", .context_tokens = 10};

std::string tokenized(const std::string& body) {
  const auto answer = answer_tokenize(body, FakeCodec(), kModel);
  return answer ? *answer : answer.error().message;
}

TEST(TextRoutes, TokenizeWritesTheTokensInOrder) {
  EXPECT_EQ(tokenized(R"({"content":"ab<|im_end|>"})"),
            R"({"tokens":[97,98,257],"count":3,"max_model_len":10})");
  EXPECT_EQ(tokenized(R"({"content":""})"), R"({"tokens":[],"count":0,"max_model_len":10})");
}

TEST(TextRoutes, PiecesAreTextsOrBytes) {
  EXPECT_EQ(tokenized(R"({"content":"\"<|im_end|>","with_pieces":true})"),
            R"({"tokens":[{"id":34,"piece":"\""},{"id":257,"piece":"<|im_end|>"}],)"
            R"("count":2,"max_model_len":10})");
  EXPECT_EQ(tokenized("{\"content\":\"\xC3\xA9\",\"with_pieces\":true}"),
            R"({"tokens":[{"id":195,"piece":[195]},{"id":169,"piece":[169]}],)"
            R"("count":2,"max_model_len":10})");
}

void expect_too_long(const ApiResult<std::string>& answer, const std::string& param) {
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().http_status, 400);
  EXPECT_EQ(answer.error().code, "context_length_exceeded");
  EXPECT_EQ(answer.error().param, param);
  EXPECT_THAT(answer.error().message, HasSubstr("allowed are up to 40: 4 times the context of 10"));
}

TEST(TextRoutes, WhatIsSurelyLongerThanFourContextsIsRefused) {
  const FakeCodec codec;
  const auto body_of = [](const char* field, std::size_t bytes) {
    return Json{{field, std::string(bytes, 'a')}}.dump();
  };
  const auto chat_of = [](std::size_t bytes) {
    return Json{{"messages", {{{"role", "user"}, {"content", std::string(bytes, 'a')}}}}}.dump();
  };
  constexpr std::size_t kAllowed = 12 * 41 - 1;
  EXPECT_TRUE(answer_tokenize(body_of("content", kAllowed), codec, kModel));
  expect_too_long(answer_tokenize(body_of("content", kAllowed + 1), codec, kModel), "content");
  expect_too_long(answer_tokenize(body_of("prompt", kAllowed + 1), codec, kModel), "prompt");
  EXPECT_TRUE(answer_tokenize(chat_of(kAllowed), codec, kModel));
  expect_too_long(answer_tokenize(chat_of(kAllowed + 1), codec, kModel), "messages");
  EXPECT_TRUE(answer_apply_template(chat_of(kAllowed), codec, kModel));
  expect_too_long(answer_apply_template(chat_of(kAllowed + 1), codec, kModel), "messages");
}

TEST(TextRoutes, MoreTokensThanFourContextsAreNotTurnedIntoText) {
  const FakeCodec codec;
  const auto body_of = [](std::size_t count) { return Json{{"tokens", Json(count, 97)}}.dump(); };
  EXPECT_EQ(answer_detokenize(body_of(2), codec, kModel).value(),
            R"({"content":"aa","prompt":"aa"})");
  EXPECT_TRUE(answer_detokenize(body_of(40), codec, kModel));
  expect_too_long(answer_detokenize(body_of(41), codec, kModel), "tokens");
}

TEST(TextRoutes, AMapHasADigitForEachBlockAndWhatCompressionHasMadeOfThem) {
  EXPECT_EQ(answer_kv_map(nullptr), R"({"layers":[]})");
  KvMap map;
  map.request = 7;
  map.num_tokens = 60;
  map.num_layers = 2;
  map.num_blocks = 4;
  map.cells = {3, 7, 6, 0, 0, 1, 2, 3};
  EXPECT_EQ(answer_kv_map(&map), R"({"request":7,"num_tokens":60,"layers":["3760","0123"]})");
  map.compressed = {.first_entry = 1,
                    .num_before = 16,
                    .num_kept = 8,
                    .num_archived_pages = 6,
                    .num_archived_blocks = 2};
  EXPECT_EQ(answer_kv_map(&map),
            R"({"request":7,"num_tokens":60,"layers":["3760","0123"],)"
            R"("compressed":{"first_block":1,"blocks_before":16,"blocks_kept":8,)"
            R"("archived_pages":6,"blocks_archived":2}})");
}

TEST(TextRoutes, HealthSaysWhichUsesOfTheStoreHaveStopped) {
  EngineStats stats;
  EXPECT_EQ(answer_health(stats), R"({"status":"ok"})");
  stats.has_store = true;
  EXPECT_EQ(answer_health(stats), R"({"status":"ok","kv_store":{"loads":"ok","stores":"ok"}})");
  stats.store.loads_stopped = true;
  EXPECT_EQ(answer_health(stats),
            R"({"status":"ok","kv_store":{"loads":"stopped","stores":"ok"}})");
  stats.store.stores_stopped = true;
  EXPECT_EQ(answer_health(stats),
            R"({"status":"ok","kv_store":{"loads":"stopped","stores":"stopped"}})");
}

}  // namespace text_routes_test
}  // namespace karez::test
