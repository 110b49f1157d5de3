#include "server/grammar_rules.h"

#include <fmt/format.h>

#include <array>
#include <span>

#include "base/check.h"

namespace karez {
namespace {

struct SharedRule {
  std::string_view name;
  std::string_view body;
  std::array<std::string_view, 6> uses;
};

// White space is short on purpose: a small model that may write any amount of it does. Numbers
// stay inside double, and \u escapes are never halves of a surrogate pair.
constexpr std::array<SharedRule, 14> kSharedRules = {{
    {"ws", R"((" " | "\n" " "{0,24})?)", {}},
    {"null", R"("null")", {}},
    {"boolean", R"("true" | "false")", {}},
    {"integer", R"("-"? ("0" | [1-9] [0-9]{0,15}))", {}},
    {"number", R"(json-integer ("." [0-9]{1,16})? ([eE] [-+]? [0-9]{1,2})?)", {"integer"}},
    {"char",
     R"([^"\\\x00-\x1F\x7F] | "\\" (["\\/bfnrt] | "u" json-unit))"
     "\n"
     R"(json-unit ::= [0-9a-cA-CefEF] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2})",
     {}},
    {"string", R"("\"" json-char* "\"")", {"char"}},
    {"object",
     R"("{" json-ws (json-member ("," json-ws json-member)*)? json-ws "}")"
     "\n"
     R"(json-member ::= json-string ":" json-ws json-value)",
     {"ws", "string", "value"}},
    {"array",
     R"("[" json-ws (json-value ("," json-ws json-value)*)? json-ws "]")",
     {"ws", "value"}},
    {"value",
     "json-object | json-array | json-string | json-number | json-boolean | json-null",
     {"object", "array", "string", "number", "boolean", "null"}},
    {"date",
     R"("\"" json-day "\"")"
     "\n"
     R"(json-day ::= [0-9]{4} "-" ("0" [1-9] | "1" [0-2]) "-" ("0" [1-9] | [12] [0-9] | "3" [01]))",
     {}},
    {"time",
     R"("\"" json-clock "\"")"
     "\n"
     R"(json-clock ::= ([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9] ":" [0-5] [0-9] ("." [0-9]{1,6})?)"
     R"( ("Z" | [-+] ([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9]))",
     {}},
    {"date-time", R"("\"" json-day "T" json-clock "\"")", {"date", "time"}},
    {"uuid",
     R"("\"" [0-9a-f]{8} "-" [0-9a-f]{4} "-" [0-9a-f]{4} "-" [0-9a-f]{4} "-" [0-9a-f]{12} "\"")",
     {}},
}};

}  // namespace

std::string GrammarRules::add(std::string_view body) {
  std::string name = reserve();
  define(name, body);
  return name;
}

std::string GrammarRules::reserve() { return fmt::format("r{}", num_rules_++); }

void GrammarRules::define(const std::string& name, std::string_view body) {
  if (!over_budget()) {
    text_ += fmt::format("{} ::= {}\n", name, body);
  }
}

std::string GrammarRules::json_type(std::string_view type) {
  if (shared_.insert(std::string(type)).second) {
    bool known = false;
    for (const SharedRule& rule : kSharedRules) {
      if (rule.name != type) {
        continue;
      }
      known = true;
      text_ += fmt::format("json-{} ::= {}\n", rule.name, rule.body);
      for (const std::string_view used : rule.uses) {
        if (!used.empty()) {
          json_type(used);
        }
      }
    }
    KAREZ_CHECK(known, "no such shared grammar rule");
  }
  return fmt::format("json-{}", type);
}

bool GrammarRules::is_format(std::string_view name) {
  return name == "date" || name == "time" || name == "date-time" || name == "uuid";
}

std::string GrammarRules::repeat(const std::string& item, std::size_t low, long long high) {
  repetitions_ += high < 0 ? low : static_cast<std::size_t>(high);
  if (high < 0) {
    return low == 0 ? fmt::format("{}*", item) : fmt::format("{}{{{},}}", item, low);
  }
  return high == 0 ? std::string(R"("")") : fmt::format("{}{{{},{}}}", item, low, high);
}

std::string GrammarRules::finish(std::string_view root) const {
  return fmt::format("root ::= {}\n{}", root, text_);
}

std::string grammar_literal(std::string_view text) {
  std::string literal = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      literal += '\\';
    }
    literal += c;
  }
  literal += '"';
  return literal;
}

}  // namespace karez
