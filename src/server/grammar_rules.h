// A GBNF grammar under construction: named rules, the shared rules for JSON's own types, and a
// budget, because schemas come from users.
//
// GBNF is llama.cpp's grammar notation. Rule r0, r1, ... are ours; json-* are the shared ones.
// Thread: one caller at a time.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <string_view>

namespace karez {

class GrammarRules {
 public:
  static constexpr std::size_t kMaxBytes = 256 * 1024;
  static constexpr std::size_t kMaxRules = 8192;
  // Of one {m,n} and of all together: the sampler unrolls them.
  static constexpr std::size_t kMaxRepetition = 1024;
  static constexpr std::size_t kMaxRepetitions = 16 * 1024;

  // A fresh rule; returns its name.
  std::string add(std::string_view body);
  // A name whose rule comes later (recursion).
  std::string reserve();
  void define(const std::string& name, std::string_view body);

  // The name of a shared rule, which is added at its first use: "value", "object", "array",
  // "string", "char", "integer", "number", "boolean", "null", "ws", "date", "time", "date-time",
  // "uuid". Requires: one of these.
  std::string json_type(std::string_view type);
  static bool is_format(std::string_view name);

  // item{low,high}; high < 0: without end. Notes what it costs.
  std::string repeat(const std::string& item, std::size_t low, long long high);

  bool over_budget() const {
    return text_.size() > kMaxBytes || num_rules_ > kMaxRules || repetitions_ > kMaxRepetitions;
  }
  // With `root` as the first rule.
  std::string finish(std::string_view root) const;

 private:
  std::string text_;
  std::size_t num_rules_ = 0;
  std::size_t repetitions_ = 0;
  std::set<std::string, std::less<>> shared_;
};

// A GBNF literal that matches exactly this text (without control characters).
std::string grammar_literal(std::string_view text);

}  // namespace karez
