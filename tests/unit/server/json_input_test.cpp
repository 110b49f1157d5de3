#include "server/json_input.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace karez {
namespace {

using ::testing::HasSubstr;

TEST(JsonInput, ReadsAnObjectAndKeepsTheOrderOfItsKeys) {
  const auto json = parse_json_object(R"({"z": 1, "a": {"y": [1, "x"], "b": null}})");
  ASSERT_TRUE(json.has_value());
  EXPECT_EQ(json->dump(), R"({"z":1,"a":{"y":[1,"x"],"b":null}})");
}

TEST(JsonInput, RefusesWhatIsNoJsonObject) {
  for (const char* text : {"", "[]", "1", "null", "{", "{} x", "{\"a\":}", "{'a':1}", "\xff"}) {
    const auto json = parse_json_object(text);
    ASSERT_FALSE(json.has_value()) << text;
    EXPECT_EQ(json.error().http_status, 400);
  }
}

TEST(JsonInput, RefusesAKeyThatAppearsTwiceAndNamesItsPath) {
  const auto json = parse_json_object(R"({"a": [{"b": 1}, {"c": 1, "d": 2, "c": 3}]})");
  ASSERT_FALSE(json.has_value());
  EXPECT_EQ(json.error().param, "a[1].c");
}

TEST(JsonInput, RefusesTheCharacterNulInTextsAndKeys) {
  const auto text = parse_json_object(R"({"messages": [{"content": "a\u0000b"}]})");
  ASSERT_FALSE(text.has_value());
  EXPECT_EQ(text.error().param, "messages[0].content");
  EXPECT_FALSE(parse_json_object(R"({"a\u0000": 1})").has_value());
}

TEST(JsonInput, RefusesTextThatIsNotUtf8) {
  for (const char* bytes : {"\xED\xA0\x80", "\xF0\x80\x80\x41", "\xE2\x80\x41", "\xff"}) {
    EXPECT_FALSE(parse_json_object(std::string("{\"a\": \"") + bytes + "\"}").has_value());
  }
  EXPECT_FALSE(parse_json_object(R"({"a": "\ud800"})").has_value());
}

TEST(JsonInput, RefusesNestingBeyondTheLimit) {
  const auto nested = [](int depth) {
    std::string text = "{\"a\":";
    for (int i = 1; i < depth; ++i) {
      text += "[";
    }
    for (int i = 1; i < depth; ++i) {
      text += "]";
    }
    return text + (depth == 1 ? "0}" : "}");
  };
  EXPECT_TRUE(parse_json_object(nested(64)).has_value());
  const auto deep = parse_json_object(nested(65));
  ASSERT_FALSE(deep.has_value());
  EXPECT_THAT(deep.error().message, HasSubstr("deeper than 64"));
  EXPECT_FALSE(parse_json_object(nested(1'000'000)).has_value());
}

TEST(JsonInput, RefusesMoreValuesThanTheLimit) {
  EXPECT_TRUE(parse_json_object(R"({"a":[1,2]})", {.max_depth = 4, .max_values = 4}).has_value());
  EXPECT_FALSE(
      parse_json_object(R"({"a":[1,2,3]})", {.max_depth = 4, .max_values = 4}).has_value());
}

TEST(JsonInput, RefusesNumbersBeyondDouble) {
  EXPECT_FALSE(parse_json_object(R"({"a": 1e999})").has_value());
  EXPECT_TRUE(parse_json_object(R"({"a": 123456789012345678901234567890})").has_value());
}

}  // namespace
}  // namespace karez
