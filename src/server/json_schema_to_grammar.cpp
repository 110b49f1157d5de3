#include "server/json_schema_to_grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "server/field_reader.h"
#include "server/grammar_rules.h"
#include "server/integer_range.h"

namespace karez {
namespace {

constexpr int kMaxDepth = 32;
// Of a property's name and of a reference: each place below repeats them in its path.
constexpr std::size_t kMaxNameBytes = 1024;
// Objects with more members are searched by a table.
constexpr std::size_t kMostLinear = 32;

constexpr std::array<std::string_view, 14> kAnnotations = {
    "title",      "description", "default",   "examples", "$schema",     "$id",  "$comment",
    "deprecated", "readOnly",    "writeOnly", "$defs",    "definitions", "name", "strict"};

using Keywords = std::span<const std::string_view>;
constexpr std::array<std::string_view, 1> kOfAny = {"type"};
constexpr std::array<std::string_view, 4> kOfString = {"type", "minLength", "maxLength", "format"};
constexpr std::array<std::string_view, 4> kOfArray = {"type", "items", "minItems", "maxItems"};
constexpr std::array<std::string_view, 4> kOfObject = {"type", "properties", "required",
                                                       "additionalProperties"};
constexpr std::array<std::string_view, 5> kOfInteger = {"type", "minimum", "maximum",
                                                        "exclusiveMinimum", "exclusiveMaximum"};

// Nothing: no such type.
std::optional<Keywords> keywords_of(std::string_view type) {
  if (type == "integer") {
    return kOfInteger;
  }
  if (type == "string") {
    return kOfString;
  }
  if (type == "array") {
    return kOfArray;
  }
  if (type == "object") {
    return kOfObject;
  }
  return type == "number" || type == "boolean" || type == "null" ? std::optional<Keywords>(kOfAny)
                                                                 : std::nullopt;
}

// The least integer that a bound from below allows; that of a bound from above is its mirror.
std::int64_t least_integer(const Json& bound, bool exclusive) {
  constexpr std::int64_t kBeyond = kLargestGrammarInteger + 1;
  if (bound.is_number_integer()) {
    const std::int64_t whole =
        bound.is_number_unsigned() && bound.get<std::uint64_t>() > std::uint64_t{kBeyond}
            ? kBeyond
            : std::clamp(bound.get<std::int64_t>(), -kBeyond, kBeyond);
    return whole + (exclusive ? 1 : 0);
  }
  const double value = std::clamp(bound.get<double>(), -1e16, 1e16);
  return static_cast<std::int64_t>(exclusive ? std::floor(value) + 1 : std::ceil(value));
}

std::int64_t greatest_integer(const Json& bound, bool exclusive) {
  constexpr std::int64_t kBeyond = kLargestGrammarInteger + 1;
  if (bound.is_number_unsigned() && bound.get<std::uint64_t>() > std::uint64_t{kBeyond}) {
    return kBeyond;
  }
  if (bound.is_number_integer()) {
    return -least_integer(Json(-std::max(bound.get<std::int64_t>(), -kBeyond)), exclusive);
  }
  return -least_integer(Json(-bound.get<double>()), exclusive);
}

// Where in the schema we are, and which references led here without a character in between.
struct Place {
  std::string path;
  int depth = 0;
  std::set<std::string> open_references;

  Place below(std::string_view step, bool consumed) const {
    return {fmt::format("{}{}{}", path, step.starts_with('[') ? "" : ".", step), depth + 1,
            consumed ? std::set<std::string>{} : open_references};
  }
};

class Converter {
 public:
  explicit Converter(const Json& root) : root_(root) {}

  ApiResult<std::string> run(std::string_view path) {
    const std::string root = convert(root_, {std::string(path), 0, {}});
    check_budget(path);
    if (problem_.error) {
      return api_fail(std::move(*problem_.error));
    }
    return rules_.finish(root);
  }

 private:
  // Each returns an expression that may stand in a sequence. After a failure: anything.
  std::string convert(const Json& schema, const Place& place);
  std::string reference(FieldReader& reader, const Json& schema, const Place& place);
  std::string any_of(const Json& schema, std::string_view keyword, const Place& place);
  std::string enumeration(const Json& values, const Place& place);
  std::string one_of_types(FieldReader& reader, const Json& schema, const Json& types,
                           const Place& place);
  // ignored: keywords that bind other types that the value may have.
  std::string typed(FieldReader& reader, const Json& schema, const std::string& type,
                    const Place& place, Keywords ignored = {});
  std::string integer_type(FieldReader& reader, const Place& place);
  std::string string_type(FieldReader& reader);
  std::string array_type(FieldReader& reader, const Place& place);
  std::string object_type(FieldReader& reader, const Place& place);
  std::string members(const Json& properties, const std::set<std::string>& required,
                      const std::string& additional, const Place& place);

  void fail(const std::string& path, std::string message) {
    if (!problem_.error) {
      problem_.error = ApiError::bad_field(path, std::move(message));
    }
  }
  void check_budget(std::string_view path) {
    if (rules_.over_budget()) {
      fail(std::string(path), fmt::format("{} is too large a schema", path));
    }
  }
  // Notes the first keyword that is neither known here nor an annotation.
  void allow_only(const Json& schema, Keywords keywords, const Place& place, Keywords ignored = {});
  // Null: none.
  const Json* member(const Json& object, const std::string& name);
  const Json* resolve(const std::string& pointer);

  const Json& root_;
  GrammarRules rules_;
  FieldProblem problem_;
  std::map<std::string, std::string> reference_rules_;
  std::map<const Json*, std::unordered_map<std::string_view, const Json*>> large_objects_;
};

void Converter::allow_only(const Json& schema, Keywords keywords, const Place& place,
                           Keywords ignored) {
  for (const auto& [keyword, value] : schema.items()) {
    if (problem_.error) {
      return;
    }
    if (std::ranges::find(kAnnotations, keyword) == kAnnotations.end() &&
        std::ranges::find(keywords, keyword) == keywords.end() &&
        std::ranges::find(ignored, keyword) == ignored.end()) {
      fail(place.path,
           fmt::format(
               "{} has the keyword \"{}\", which is not supported{}", place.path, keyword,
               keywords.empty() ? std::string() : fmt::format(" beside \"{}\"", keywords.front())));
    }
  }
}

std::string Converter::convert(const Json& schema, const Place& place) {
  check_budget(place.path);
  if (place.depth > kMaxDepth) {
    fail(place.path, fmt::format("{} is nested deeper than {} levels", place.path, kMaxDepth));
  }
  if (problem_.error) {
    return {};
  }
  if (schema.is_boolean() && schema.get<bool>()) {
    return rules_.json_type("value");
  }
  if (!schema.is_object()) {
    fail(place.path, fmt::format("{} is {}, allowed are schemas: objects and true", place.path,
                                 describe(schema)));
    return {};
  }
  FieldReader reader(schema, place.path, problem_);
  if (schema.contains("$ref")) {
    return reference(reader, schema, place);
  }
  for (const std::string_view keyword : {"anyOf", "oneOf", "allOf"}) {
    if (schema.contains(keyword)) {
      return any_of(schema, keyword, place);
    }
  }
  if (schema.contains("const")) {
    static constexpr std::array<std::string_view, 2> kAllowed = {"const", "type"};
    allow_only(schema, kAllowed, place);
    return grammar_literal(schema["const"].dump());
  }
  if (schema.contains("enum")) {
    static constexpr std::array<std::string_view, 2> kAllowed = {"enum", "type"};
    allow_only(schema, kAllowed, place);
    return enumeration(schema["enum"], place.below("enum", false));
  }
  if (!schema.contains("type")) {
    // The keywords tell which type is meant; without any, every value is.
    if (schema.contains("properties") || schema.contains("additionalProperties")) {
      return typed(reader, schema, "object", place);
    }
    if (schema.contains("items")) {
      return typed(reader, schema, "array", place);
    }
    allow_only(schema, {}, place);
    return rules_.json_type("value");
  }
  const Json& type = schema["type"];
  if (type.is_string()) {
    return typed(reader, schema, type.get<std::string>(), place);
  }
  return one_of_types(reader, schema, type, place);
}

std::string Converter::one_of_types(FieldReader& reader, const Json& schema, const Json& types,
                                    const Place& place) {
  if (!types.is_array() || types.empty() || types.size() > 8) {
    reader.wrong("type", describe(types), "a type's name and arrays of 1 to 8 names");
    return {};
  }
  std::set<std::string> names;
  for (const Json& name : types) {
    if (!name.is_string() || !names.insert(name.get<std::string>()).second) {
      reader.wrong("type",
                   name.is_string() ? fmt::format("an array with {} twice", name.dump())
                                    : "an array with " + describe(name),
                   "arrays of names, each once");
      return {};
    }
  }
  std::vector<std::string> alternatives;
  for (const Json& type : types) {
    const auto name = type.get<std::string>();
    std::vector<std::string_view> ignored;
    for (const std::string& other : names) {
      // What binds integers binds numbers as well, where it is refused.
      if (other != name && !(other == "integer" && name == "number")) {
        const Keywords bound = keywords_of(other).value_or(Keywords{});
        ignored.insert(ignored.end(), bound.begin(), bound.end());
      }
    }
    alternatives.push_back(typed(reader, schema, name, place, ignored));
    if (problem_.error) {
      return {};
    }
  }
  return rules_.add(fmt::format("{}", fmt::join(alternatives, " | ")));
}

const Json* Converter::member(const Json& object, const std::string& name) {
  if (!object.is_object()) {
    return nullptr;
  }
  if (object.size() <= kMostLinear) {
    const auto found = object.find(name);
    return found == object.end() ? nullptr : &*found;
  }
  auto& table = large_objects_[&object];
  if (table.empty()) {
    for (const auto& [key, value] : object.get_ref<const Json::object_t&>()) {
      table.emplace(key, &value);
    }
  }
  const auto found = table.find(name);
  return found == table.end() ? nullptr : found->second;
}

const Json* Converter::resolve(const std::string& pointer) {
  if (pointer == "#") {
    return &root_;
  }
  if (!pointer.starts_with("#/")) {
    return nullptr;
  }
  const Json* at = &root_;
  std::string_view rest = std::string_view(pointer).substr(2);
  while (true) {
    const std::size_t slash = rest.find('/');
    std::string key;
    const std::string_view raw = rest.substr(0, slash);
    for (std::size_t i = 0; i < raw.size(); ++i) {
      const bool escape = raw[i] == '~' && i + 1 < raw.size();
      if (escape && (raw[i + 1] == '0' || raw[i + 1] == '1')) {
        key += raw[++i] == '0' ? '~' : '/';
      } else {
        key += raw[i];
      }
    }
    at = member(*at, key);
    if (at == nullptr) {
      return nullptr;
    }
    if (slash == std::string_view::npos) {
      return at;
    }
    rest.remove_prefix(slash + 1);
  }
}

std::string Converter::reference(FieldReader& reader, const Json& schema, const Place& place) {
  static constexpr std::array<std::string_view, 1> kAllowed = {"$ref"};
  allow_only(schema, kAllowed, place);
  const auto pointer = reader.string("$ref");
  if (!pointer) {
    reader.wrong("$ref", "null", "strings");
    return {};
  }
  if (pointer->size() > kMaxNameBytes) {
    reader.wrong("$ref", fmt::format("a string of {} bytes", pointer->size()),
                 fmt::format("up to {}", kMaxNameBytes));
    return {};
  }
  const Json* target = resolve(*pointer);
  if (target == nullptr) {
    reader.wrong("$ref", fmt::format("\"{}\"", *pointer),
                 "references to a part of this schema (\"#/$defs/NAME\") that exists");
    return {};
  }
  if (place.open_references.contains(*pointer)) {
    reader.fail("$ref", fmt::format("{} refers to itself without a value in between",
                                    reader.path_of("$ref")));
    return {};
  }
  const auto known = reference_rules_.find(*pointer);
  if (known != reference_rules_.end()) {
    return known->second;
  }
  const std::string rule = rules_.reserve();
  reference_rules_.emplace(*pointer, rule);
  Place at = place.below("$ref", false);
  at.open_references.insert(*pointer);
  rules_.define(rule, convert(*target, at));
  return rule;
}

std::string Converter::any_of(const Json& schema, std::string_view keyword, const Place& place) {
  const std::array<std::string_view, 1> allowed = {keyword};
  allow_only(schema, allowed, place);
  const Json& parts = schema[std::string(keyword)];
  const std::size_t most = keyword == "allOf" ? 1 : 256;
  if (!parts.is_array() || parts.empty() || parts.size() > most) {
    fail(fmt::format("{}.{}", place.path, keyword),
         fmt::format("{}.{} is {}, allowed are arrays of 1{} schemas", place.path, keyword,
                     describe(parts), most == 1 ? "" : " to 256"));
    return {};
  }
  std::vector<std::string> alternatives;
  for (std::size_t i = 0; i < parts.size() && !problem_.error; ++i) {
    alternatives.push_back(
        convert(parts[i], place.below(fmt::format("{}[{}]", keyword, i), false)));
  }
  return rules_.add(fmt::format("{}", fmt::join(alternatives, " | ")));
}

std::string Converter::enumeration(const Json& values, const Place& place) {
  if (!values.is_array() || values.empty() || values.size() > 1000) {
    fail(place.path, fmt::format("{} is {}, allowed are arrays of 1 to 1000 values", place.path,
                                 describe(values)));
    return {};
  }
  std::vector<std::string> alternatives;
  for (const Json& value : values) {
    alternatives.push_back(grammar_literal(value.dump()));
  }
  return rules_.add(fmt::format("{}", fmt::join(alternatives, " | ")));
}

std::string Converter::typed(FieldReader& reader, const Json& schema, const std::string& type,
                             const Place& place, Keywords ignored) {
  const std::optional<Keywords> keywords = keywords_of(type);
  if (!keywords) {
    reader.wrong("type", fmt::format("\"{}\"", type),
                 "string, number, integer, boolean, null, array and object");
    return {};
  }
  allow_only(schema, *keywords, place, ignored);
  if (type == "integer") {
    return integer_type(reader, place);
  }
  if (type == "string") {
    return string_type(reader);
  }
  if (type == "array") {
    return array_type(reader, place);
  }
  if (type == "object") {
    return object_type(reader, place);
  }
  return rules_.json_type(type);
}

std::string Converter::integer_type(FieldReader& reader, const Place& place) {
  std::int64_t low = -kLargestGrammarInteger;
  std::int64_t high = kLargestGrammarInteger;
  bool bounded = false;
  for (const std::string_view keyword :
       {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}) {
    const Json* bound = reader.find(keyword);
    if (bound == nullptr) {
      continue;
    }
    if (!bound->is_number()) {
      reader.wrong(keyword, describe(*bound), "numbers");
      return {};
    }
    bounded = true;
    const bool exclusive = keyword.starts_with("exclusive");
    if (keyword == "minimum" || keyword == "exclusiveMinimum") {
      low = std::max(low, least_integer(*bound, exclusive));
    } else {
      high = std::min(high, greatest_integer(*bound, exclusive));
    }
  }
  if (!bounded) {
    return rules_.json_type("integer");
  }
  if (low > high) {
    fail(place.path, fmt::format("{} allows no integer of up to 16 digits", place.path));
    return {};
  }
  return rules_.add(integer_range_grammar(low, high));
}

std::string Converter::string_type(FieldReader& reader) {
  constexpr auto kMost = static_cast<std::int64_t>(GrammarRules::kMaxRepetition);
  const auto low = reader.integer("minLength", 0, kMost);
  const auto high = reader.integer("maxLength", low.value_or(0), kMost);
  if (const auto format = reader.string("format")) {
    if (!GrammarRules::is_format(*format) || low || high) {
      reader.wrong("format", fmt::format("\"{}\"", *format),
                   "date, time, date-time and uuid without minLength and maxLength");
      return {};
    }
    return rules_.json_type(*format);
  }
  if (!low && !high) {
    return rules_.json_type("string");
  }
  const std::string characters = rules_.repeat(
      rules_.json_type("char"), static_cast<std::size_t>(low.value_or(0)), high.value_or(-1));
  return rules_.add(fmt::format(R"("\"" {} "\"")", characters));
}

std::string Converter::array_type(FieldReader& reader, const Place& place) {
  constexpr auto kMost = static_cast<std::int64_t>(GrammarRules::kMaxRepetition);
  const auto low = reader.integer("minItems", 0, kMost).value_or(0);
  const auto high = reader.integer("maxItems", low, kMost).value_or(-1);
  const Json* items = reader.find("items");
  const std::string item =
      items == nullptr ? rules_.json_type("value") : convert(*items, place.below("items", true));
  const std::string ws = rules_.json_type("ws");
  if (high == 0) {
    return rules_.add(fmt::format(R"("[" {} "]")", ws));
  }
  const std::string more = rules_.add(fmt::format(R"("," {} {})", ws, item));
  const std::string list =
      fmt::format("{} {}", item,
                  rules_.repeat(more, static_cast<std::size_t>(low > 0 ? low - 1 : 0),
                                high < 0 ? -1 : high - 1));
  return rules_.add(low == 0 ? fmt::format(R"("[" {} ({})? {} "]")", ws, list, ws)
                             : fmt::format(R"("[" {} {} {} "]")", ws, list, ws));
}

std::string Converter::object_type(FieldReader& reader, const Place& place) {
  const Json* properties = reader.object("properties");
  const Json* required_names = reader.array("required");
  const Json* additional_schema = reader.find("additionalProperties");
  if (problem_.error) {
    return {};
  }
  static const Json kNone = Json::object();
  const Json& named = properties == nullptr ? kNone : *properties;
  for (const auto& [field, listed] :
       {std::pair("properties", properties), std::pair("required", required_names)}) {
    if (listed != nullptr && listed->size() > GrammarRules::kMaxRules) {
      reader.wrong(field, fmt::format("{} names", listed->size()),
                   fmt::format("up to {} names", GrammarRules::kMaxRules));
      return {};
    }
  }
  std::set<std::string> required;
  for (const Json& name : required_names == nullptr ? kNone : *required_names) {
    if (!name.is_string() || member(named, name.get<std::string>()) == nullptr) {
      reader.wrong("required", "an array with " + (name.is_string() ? name.dump() : describe(name)),
                   "names from properties");
      return {};
    }
    required.insert(name.get<std::string>());
  }
  std::string additional;
  const bool is_false = additional_schema != nullptr && additional_schema->is_boolean() &&
                        !additional_schema->get<bool>();
  if ((additional_schema != nullptr && !is_false) ||
      (additional_schema == nullptr && named.empty())) {
    const std::string value =
        additional_schema == nullptr
            ? rules_.json_type("value")
            : convert(*additional_schema, place.below("additionalProperties", true));
    additional = rules_.add(
        fmt::format(R"({} ":" {} {})", rules_.json_type("string"), rules_.json_type("ws"), value));
  }
  const std::string ws = rules_.json_type("ws");
  const std::string inside = members(named, required, additional, place);
  return rules_.add(fmt::format(R"("{{" {} {} {} "}}")", ws, inside, ws));
}

// From the last property to the first: `head` is what may follow while no member is written yet,
// `tail` what may follow after one. So the grammar grows with the number of properties, not with
// the number of subsets of the optional ones.
std::string Converter::members(const Json& properties, const std::set<std::string>& required,
                               const std::string& additional, const Place& place) {
  const std::string ws = rules_.json_type("ws");
  std::string head = R"("")";
  std::string tail = R"("")";
  if (!additional.empty()) {
    tail = rules_.add(fmt::format(R"(("," {} {})*)", ws, additional));
    head = rules_.add(fmt::format("({} {})?", additional, tail));
  }
  std::vector<std::pair<std::string, std::string>> written;  // name, rule of the member
  for (const auto& [name, schema] : properties.items()) {
    if (problem_.error) {
      return {};
    }
    if (name.size() > kMaxNameBytes) {
      fail(place.path, fmt::format("{}.properties has a name of {} bytes, allowed are up to {}",
                                   place.path, name.size(), kMaxNameBytes));
      return {};
    }
    const Place at = place.below(fmt::format("properties.{}", name), true);
    written.emplace_back(
        name, rules_.add(fmt::format(R"({} ":" {} {})", grammar_literal(Json(name).dump()), ws,
                                     convert(schema, at))));
  }
  for (auto member = written.rbegin(); member != written.rend(); ++member) {
    const auto& [name, rule] = *member;
    if (required.contains(name)) {
      head = rules_.add(fmt::format("{} {}", rule, tail));
      tail = rules_.add(fmt::format(R"("," {} {} {})", ws, rule, tail));
    } else {
      head = rules_.add(fmt::format("{} {} | {}", rule, tail, head));
      tail = rules_.add(fmt::format(R"(("," {} {})? {})", ws, rule, tail));
    }
  }
  return head;
}

}  // namespace

ApiResult<std::string> json_schema_to_grammar(const Json& schema, std::string_view path) {
  return Converter(schema).run(path);
}

std::string json_object_grammar() {
  GrammarRules rules;
  const std::string object = rules.json_type("object");
  return rules.finish(object);
}

}  // namespace karez
