#include "server/json_schema_to_grammar.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "server/grammar_rules.h"
#include "server/integer_range.h"

namespace karez {
namespace {

using ::testing::HasSubstr;

ApiResult<std::string> convert(const char* schema) {
  return json_schema_to_grammar(Json::parse(schema), "schema");
}

void expect_refused(const char* schema, const std::string& in_message) {
  const auto grammar = convert(schema);
  ASSERT_FALSE(grammar.has_value()) << schema;
  EXPECT_EQ(grammar.error().http_status, 400);
  EXPECT_THAT(grammar.error().message, HasSubstr(in_message));
}

TEST(JsonSchemaToGrammar, StartsWithTheRootRule) {
  const auto grammar = convert(R"({"type": "boolean"})");
  ASSERT_TRUE(grammar.has_value());
  EXPECT_THAT(*grammar, testing::StartsWith("root ::= json-boolean\n"));
  EXPECT_THAT(*grammar, HasSubstr("json-boolean ::= \"true\" | \"false\"\n"));
}

TEST(JsonSchemaToGrammar, WritesRequiredAndOptionalPropertiesInTheirOrder) {
  const auto grammar = convert(
      R"({"type":"object","properties":{"b":{"type":"null"},"a":{"type":"null"}},"required":["a"]})");
  ASSERT_TRUE(grammar.has_value());
  EXPECT_EQ(*grammar,
            "root ::= r6\n"
            "json-ws ::= (\" \" | \"\\n\" \" \"{0,24})?\n"
            "json-null ::= \"null\"\n"
            "r0 ::= \"\\\"b\\\"\" \":\" json-ws json-null\n"
            "r1 ::= \"\\\"a\\\"\" \":\" json-ws json-null\n"
            "r2 ::= r1 \"\"\n"
            "r3 ::= \",\" json-ws r1 \"\"\n"
            "r4 ::= r0 r3 | r2\n"
            "r5 ::= (\",\" json-ws r0)? r3\n"
            "r6 ::= \"{\" json-ws r4 json-ws \"}\"\n");
}

TEST(JsonSchemaToGrammar, EscapesTextsOfEnumsForJsonAndForTheGrammar) {
  const auto grammar = convert(R"({"enum": ["a\"b\\", 1, null, "\n"]})");
  ASSERT_TRUE(grammar.has_value());
  EXPECT_THAT(*grammar, HasSubstr(R"x("\"a\\\"b\\\\\"" | "1" | "null" | "\"\\n\"")x"));
}

TEST(JsonSchemaToGrammar, AllowsRecursionThroughAReference) {
  const auto grammar = convert(
      R"({"$defs":{"node":{"type":"object","properties":{"next":{"anyOf":[{"$ref":"#/$defs/node"},
      {"type":"null"}]}},"required":["next"]}},"$ref":"#/$defs/node"})");
  ASSERT_TRUE(grammar.has_value()) << grammar.error().message;
}

TEST(JsonSchemaToGrammar, RefusesAReferenceThatIsOnlyItself) {
  expect_refused(R"({"$ref": "#"})", "refers to itself");
  expect_refused(R"({"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"anyOf":[{"$ref":"#/$defs/a"}]}},
                     "$ref":"#/$defs/a"})",
                 "refers to itself");
}

TEST(JsonSchemaToGrammar, RefusesReferencesThatLeadNowhereOrOutside) {
  expect_refused(R"({"$ref": "#/$defs/x"})", "$ref");
  expect_refused(R"({"$ref": "http://127.0.0.1/schema.json"})", "$ref");
  expect_refused(R"({"$ref": "file:///etc/passwd"})", "$ref");
}

TEST(JsonSchemaToGrammar, RefusesUnsupportedKeywordsByName) {
  expect_refused(R"({"type":"string","pattern":"^a$"})", "\"pattern\"");
  expect_refused(R"({"type":"number","minimum":3})", "\"minimum\"");
  expect_refused(R"({"type":["integer","number"],"minimum":3})", "\"minimum\"");
  expect_refused(R"({"type":"integer","multipleOf":3})", "\"multipleOf\"");
  expect_refused(R"({"type":"object","patternProperties":{}})", "\"patternProperties\"");
  expect_refused(R"({"not":{}})", "\"not\"");
  expect_refused(R"({"type":"array","uniqueItems":true})", "\"uniqueItems\"");
  expect_refused(R"({"anyOf":[true],"properties":{}})", "\"properties\"");
  expect_refused(R"({"type":"string","format":"email"})", "format");
}

TEST(JsonSchemaToGrammar, RefusesWrongTypesOfKeywords) {
  expect_refused(R"({"type":"strin"})", "strin");
  expect_refused(R"({"type":7})", "type is 7");
  expect_refused(R"({"type":"object","properties":[]})", "properties");
  expect_refused(R"({"type":"object","properties":{"a":true},"required":["b"]})", "\"b\"");
  expect_refused(R"({"type":"object","required":[3]})", "3");
  expect_refused(R"({"type":"array","minItems":-1})", "minItems");
  expect_refused(R"({"type":"array","minItems":5,"maxItems":4})", "maxItems");
  expect_refused(R"({"type":"array","items":false})", "items");
  expect_refused(R"({"anyOf":[]})", "anyOf");
  expect_refused(R"({"enum":[]})", "enum");
  expect_refused(R"("string")", "a string");
}

TEST(JsonSchemaToGrammar, BoundsRepetitions) {
  EXPECT_TRUE(convert(R"({"type":"array","maxItems":1024})").has_value());
  expect_refused(R"({"type":"array","maxItems":1025})", "1024");
  expect_refused(R"({"type":"string","maxLength":1000000000})", "maxLength");
  std::string many = R"({"type":"object","properties":{)";
  for (int i = 0; i < 17; ++i) {
    many += std::string(i == 0 ? "" : ",") + "\"p" + std::to_string(i) +
            R"(":{"type":"string","maxLength":1024})";
  }
  expect_refused((many + "}}").c_str(), "too large");
}

TEST(JsonSchemaToGrammar, BoundsDepthAndSize) {
  std::string deep;
  for (int i = 0; i < 60; ++i) {
    deep += R"({"type":"array","items":)";
  }
  deep += "true" + std::string(60, '}');
  expect_refused(deep.c_str(), "deeper");
  std::string wide = R"({"type":"object","properties":{)";
  for (int i = 0; i < 5000; ++i) {
    wide += std::string(i == 0 ? "" : ",") + "\"p" + std::to_string(i) + "\":true";
  }
  expect_refused((wide + "}}").c_str(), "too large");
}

TEST(JsonSchemaToGrammar, BoundsListsOfNames) {
  std::string properties;
  std::string required;
  for (int i = 0; i < 8193; ++i) {
    properties += fmt::format("{}\"p{}\":true", i == 0 ? "" : ",", i);
    required += fmt::format("{}\"a\"", i == 0 ? "" : ",");
  }
  expect_refused(fmt::format(R"({{"type":"object","properties":{{{}}}}})", properties).c_str(),
                 "properties is 8193 names, allowed are up to 8192 names");
  expect_refused(
      fmt::format(R"({{"type":"object","properties":{{"a":true}},"required":[{}]}})", required)
          .c_str(),
      "required is 8193 names, allowed are up to 8192 names");
  const std::string name(1025, 'n');
  expect_refused(fmt::format(R"({{"properties":{{"{}":true}}}})", name).c_str(),
                 "properties has a name of 1025 bytes, allowed are up to 1024");
  expect_refused(fmt::format(R"({{"$defs":{{"{0}":true}},"$ref":"#/$defs/{0}"}})", name).c_str(),
                 "$ref is a string of 1033 bytes, allowed are up to 1024");
}

TEST(JsonSchemaToGrammar, FindsNamesInLargeObjects) {
  std::string definitions;
  std::string properties;
  for (int i = 0; i < 1000; ++i) {
    definitions += fmt::format(R"({}"d{}":{{"const":{}}})", i == 0 ? "" : ",", i, i);
    properties += fmt::format(R"({}"p{}":{{"$ref":"#/$defs/d{}"}})", i == 0 ? "" : ",", i, i);
  }
  const auto with = [&](std::string_view required, std::string_view reference) {
    return fmt::format(
        R"({{"$defs":{{{}}},"properties":{{{},"last":{{"$ref":"{}"}}}},"required":["{}"]}})",
        definitions, properties, reference, required);
  };
  const auto grammar = convert(with("p999", "#/$defs/d7").c_str());
  ASSERT_TRUE(grammar.has_value()) << grammar.error().message;
  expect_refused(with("p1000", "#/$defs/d7").c_str(), "\"p1000\"");
  expect_refused(with("p999", "#/$defs/d1000").c_str(), "#/$defs/d1000");
}

TEST(JsonSchemaToGrammar, RefusesATypeTwice) {
  expect_refused(R"({"type":["string","null","string"]})",
                 "type is an array with \"string\" twice, allowed are arrays of names, each once");
}

TEST(JsonSchemaToGrammar, KeepsKeywordsOfOtherTypesApartInTypeLists) {
  const auto grammar =
      convert(R"({"type":["array","null"],"items":{"type":"integer"},"maxItems":2})");
  ASSERT_TRUE(grammar.has_value()) << grammar.error().message;
  EXPECT_THAT(*grammar, HasSubstr("| json-null"));
}

std::string range_of(const char* schema) {
  const auto grammar = convert(schema);
  EXPECT_TRUE(grammar.has_value()) << grammar.error().message;
  return grammar ? *grammar : std::string();
}

TEST(JsonSchemaToGrammar, BoundsOfIntegersBecomeARange) {
  const std::string wanted = "root ::= r0\nr0 ::= " + integer_range_grammar(-3, 250) + "\n";
  EXPECT_EQ(range_of(R"({"type":"integer","minimum":-3,"maximum":250})"), wanted);
  EXPECT_EQ(range_of(R"({"type":"integer","exclusiveMinimum":-4,"exclusiveMaximum":251})"), wanted);
  EXPECT_EQ(range_of(R"({"type":"integer","minimum":-3.9,"maximum":250.5})"), wanted);
  EXPECT_EQ(range_of(R"({"type":"integer","exclusiveMinimum":-3.5,"exclusiveMaximum":250.1})"),
            wanted);
  EXPECT_EQ(range_of(R"({"type":"integer","minimum":-3,"exclusiveMinimum":-9,"maximum":250.0})"),
            wanted);
}

TEST(JsonSchemaToGrammar, BoundsOfIntegersBeyondItsDigitsAreNoBounds) {
  const std::string all = "root ::= r0\nr0 ::= " +
                          integer_range_grammar(-kLargestGrammarInteger, kLargestGrammarInteger) +
                          "\n";
  EXPECT_EQ(range_of(R"({"type":"integer","minimum":-9223372036854775808,
                         "maximum":18446744073709551615})"),
            all);
  EXPECT_EQ(range_of(R"({"type":"integer","minimum":-1e300,"exclusiveMaximum":1e300})"), all);
}

TEST(JsonSchemaToGrammar, RefusesBoundsThatNoIntegerMeets) {
  expect_refused(R"({"type":"integer","minimum":3,"maximum":2})", "no integer");
  expect_refused(R"({"type":"integer","exclusiveMinimum":3,"exclusiveMaximum":4})", "no integer");
  expect_refused(R"({"type":"integer","minimum":0.1,"maximum":0.9})", "no integer");
  expect_refused(R"({"type":"integer","minimum":18446744073709551615})", "no integer");
  expect_refused(R"({"type":"integer","maximum":-9223372036854775808})", "no integer");
  expect_refused(R"({"type":"integer","maximum":-1e300})", "no integer");
  expect_refused(R"({"type":"integer","minimum":"3"})", "minimum is a string");
  expect_refused(R"({"type":"integer","minimum":3,"exclusiveMinimum":true})",
                 "exclusiveMinimum is true");
}

TEST(JsonSchemaToGrammar, AdditionalPropertiesFollowTheNamedOnes) {
  const auto closed = convert(R"({"type":"object","properties":{},"additionalProperties":false})");
  ASSERT_TRUE(closed.has_value());
  EXPECT_THAT(*closed, HasSubstr(R"("{" json-ws "" json-ws "}")"));
  const auto open = convert(R"({"type":"object","additionalProperties":{"type":"integer"}})");
  ASSERT_TRUE(open.has_value());
  EXPECT_THAT(*open, HasSubstr(R"(json-string ":" json-ws json-integer)"));
}

}  // namespace
}  // namespace karez
