#include "sampling/grammar_cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bitset>
#include <charconv>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace karez {
namespace {

// Characters: each of ASCII, and all others as one.
constexpr std::size_t kBeyondAscii = 128;
using CharacterSet = std::bitset<kBeyondAscii + 1>;

// One element of a sequence: a character, a class, a token, or a reference to a rule.
struct Element {
  static constexpr std::size_t kTerminal = SIZE_MAX;
  std::size_t rule = kTerminal;
  CharacterSet characters{};  // of a terminal that is one character: which ones it may be
  std::size_t min = 1;
  std::size_t copies = 1;  // how often it may stand here, at least 1
  bool varies = false;     // in how often it stands here
};

struct Rule {
  std::vector<std::vector<Element>> alternatives;
  bool defined = false;
};

void add_range(CharacterSet& set, std::uint32_t first, std::uint32_t last) {
  for (std::uint32_t c = first; c <= last && c < kBeyondAscii; ++c) {
    set.set(c);
  }
  if (last >= kBeyondAscii) {
    set.set(kBeyondAscii);
  }
}

// The character at the beginning, which is taken away. None: an escape that libllama lacks.
std::optional<std::uint32_t> take_character(std::string_view& text) {
  const auto lead = static_cast<unsigned char>(text.front());
  text.remove_prefix(1);
  if (lead >= 0x80) {
    while (!text.empty() && (static_cast<unsigned char>(text.front()) & 0xC0U) == 0x80) {
      text.remove_prefix(1);
    }
    return kBeyondAscii;
  }
  if (lead != '\\' || text.empty()) {
    return lead;
  }
  const char escaped = text.front();
  text.remove_prefix(1);
  switch (escaped) {
    case 'n':
      return '\n';
    case 't':
      return '\t';
    case 'r':
      return '\r';
    case 'x':
    case 'u':
    case 'U': {
      const std::size_t digits = escaped == 'x' ? 2 : escaped == 'u' ? 4 : 8;
      std::uint32_t value = 0;
      const char* const end = text.data() + std::min(digits, text.size());
      if (std::from_chars(text.data(), end, value, 16).ptr != text.data() + digits) {
        return std::nullopt;
      }
      text.remove_prefix(digits);
      return value;
    }
    default:
      return escaped;
  }
}

// inside: what is between the brackets.
CharacterSet characters_of_class(std::string_view inside) {
  const bool is_negated = inside.starts_with('^');
  inside.remove_prefix(is_negated ? 1 : 0);
  CharacterSet set;
  while (!inside.empty()) {
    const auto first = take_character(inside);
    auto last = first;
    if (inside.size() >= 2 && inside.front() == '-') {
      inside.remove_prefix(1);
      last = take_character(inside);
    }
    if (!first || !last) {
      return CharacterSet().set();
    }
    add_range(set, *first, *last);
  }
  if (is_negated) {
    set.flip();
    set.set(kBeyondAscii);
  }
  return set;
}

// Empty if it has several. inside: what is between the quotes.
CharacterSet character_of_text(std::string_view inside) {
  CharacterSet set;
  if (inside.empty()) {
    return set;
  }
  const auto character = take_character(inside);
  if (inside.empty() && character) {
    add_range(set, *character, *character);
  }
  return set;
}

bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
}

class Reader {
 public:
  Reader(std::string_view text, const GrammarLimits& limits) : text_(text), limits_(limits) {}

  Expected<std::vector<Rule>> read() {
    skip_space(/*newlines=*/true);
    while (at_ < text_.size() && !problem_) {
      const std::string name = read_name();
      skip_space(/*newlines=*/false);
      if (name.empty() || !text_.substr(at_).starts_with("::=")) {
        wrong("a rule is NAME ::= ...");
        break;
      }
      at_ += 3;
      skip_space(/*newlines=*/true);
      const std::size_t rule = rule_named(name);
      // A second definition replaces the first one.
      rules_[rule].alternatives.clear();
      read_alternatives(rule, /*depth=*/0);
      skip_space(/*newlines=*/true);
    }
    if (problem_) {
      return fail(StatusCode::kInvalidArgument, std::move(*problem_));
    }
    return std::move(rules_);
  }

 private:
  void wrong(std::string message) {
    if (!problem_) {
      problem_ = fmt::format("the grammar is wrong at byte {}: {}", at_, message);
    }
  }

  void exceeds(std::string_view what, std::size_t allowed) {
    if (!problem_) {
      problem_ = fmt::format("the grammar has {}, allowed are up to {}", what, allowed);
    }
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  void skip_space(bool newlines) {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '#') {
        at_ = std::min(text_.find_first_of("\r\n", at_), text_.size());
      } else if (c == ' ' || c == '\t' || (newlines && (c == '\r' || c == '\n'))) {
        ++at_;
      } else {
        return;
      }
    }
  }

  std::string read_name() {
    const std::size_t start = at_;
    while (is_name(peek())) {
      ++at_;
    }
    return std::string(text_.substr(start, at_ - start));
  }

  std::size_t rule_named(const std::string& name) {
    const auto [found, is_new] = names_.emplace(name, rules_.size());
    return is_new ? add_rule() : found->second;
  }

  std::size_t add_rule() {
    rules_.emplace_back();
    if (rules_.size() > limits_.rules) {
      exceeds("too many rules and groups", limits_.rules);
    }
    return rules_.size() - 1;
  }

  void count_elements(std::size_t count) {
    elements_ += count;
    if (elements_ > limits_.elements) {
      exceeds("too many characters, classes and references once repetitions are unrolled",
              limits_.elements);
    }
  }

  void read_alternatives(std::size_t rule, std::size_t depth) {
    if (depth > limits_.nesting) {
      return exceeds("parentheses that are nested too deep", limits_.nesting);
    }
    rules_[rule].defined = true;
    while (!problem_) {
      std::vector<Element> sequence = read_sequence(depth);
      rules_[rule].alternatives.push_back(std::move(sequence));
      if (peek() != '|') {
        return;
      }
      ++at_;
      skip_space(/*newlines=*/true);
    }
  }

  std::vector<Element> read_sequence(std::size_t depth) {
    std::vector<Element> sequence;
    // Of the last symbol: what a repetition copies.
    std::size_t symbol_elements = 0;
    while (at_ < text_.size() && !problem_) {
      const char c = peek();
      if (c == '"' || c == '[') {
        const std::size_t start = at_ + 1;
        symbol_elements = read_quoted(c == '"' ? '"' : ']');
        // A text of several characters is as its first one: what follows matters only after it.
        if (symbol_elements > 0 || c == '[') {
          const std::string_view inside = text_.substr(start, at_ - std::min(at_, start + 1));
          sequence.push_back(
              {.characters = c == '[' ? characters_of_class(inside) : character_of_text(inside)});
        }
      } else if (c == '<' || c == '!') {
        const std::size_t end = text_.find('>', at_);
        if (end == std::string_view::npos) {
          wrong("a token is <NAME> or <[ID]>");
          break;
        }
        at_ = end + 1;
        symbol_elements = 1;
        sequence.push_back({});
      } else if (c == '.') {
        ++at_;
        symbol_elements = 1;
        sequence.push_back({.characters = CharacterSet().set()});
      } else if (is_name(c)) {
        sequence.push_back({.rule = rule_named(read_name())});
        symbol_elements = 1;
      } else if (c == '(') {
        ++at_;
        skip_space(/*newlines=*/true);
        const std::size_t group = add_rule();
        read_alternatives(group, depth + 1);
        if (peek() != ')') {
          wrong("a ) is missing");
          break;
        }
        ++at_;
        sequence.push_back({.rule = group});
        symbol_elements = 1;
      } else if (c == '*' || c == '+' || c == '?' || c == '{') {
        read_repetition(sequence, symbol_elements);
        skip_space(depth > 0);
        continue;
      } else {
        break;
      }
      count_elements(symbol_elements);
      skip_space(depth > 0);
    }
    return sequence;
  }

  // How many characters, or ends of ranges, there are until the closing quote or bracket.
  std::size_t read_quoted(char close) {
    std::size_t count = 0;
    ++at_;
    while (at_ < text_.size() && peek() != close) {
      at_ += peek() == '\\' ? std::size_t{2} : std::size_t{1};
      ++count;
    }
    if (at_ >= text_.size()) {
      wrong(fmt::format("the closing {} is missing", close));
      return count;
    }
    ++at_;
    return count;
  }

  std::size_t read_number() {
    std::size_t value = 0;
    if (peek() < '0' || peek() > '9') {
      wrong("a number of repetitions is missing");
    }
    while (peek() >= '0' && peek() <= '9') {
      value = std::min<std::size_t>(value * 10 + static_cast<std::size_t>(peek() - '0'), 1'000'000);
      ++at_;
    }
    if (value > limits_.repetition && !problem_) {
      problem_ = fmt::format("the grammar repeats {} times at byte {}, allowed are up to {}", value,
                             at_, limits_.repetition);
    }
    return value;
  }

  void read_repetition(std::vector<Element>& sequence, std::size_t symbol_elements) {
    if (sequence.empty() && symbol_elements == 0) {
      return wrong("there is nothing to repeat");
    }
    const char kind = peek();
    ++at_;
    std::size_t min = kind == '+' ? 1 : 0;
    std::size_t max = 1;
    bool endless = kind == '*' || kind == '+';
    if (kind == '{') {
      skip_space(false);
      min = read_number();
      max = min;
      skip_space(false);
      if (peek() == ',') {
        ++at_;
        skip_space(false);
        endless = peek() == '}';
        max = endless ? min : read_number();
        skip_space(false);
      }
      if (peek() != '}' || problem_) {
        return wrong("a repetition is {M}, {M,} or {M,N}");
      }
      ++at_;
      if (max < min) {
        return wrong(fmt::format("{{{},{}}} has its numbers in the wrong order", min, max));
      }
    }
    const std::size_t copies = std::max<std::size_t>(endless ? min + 1 : max, 1);
    count_elements(symbol_elements * (copies - 1) + copies);
    if (!sequence.empty()) {
      Element& last = sequence.back();
      last.copies = std::max(last.copies, copies);
      last.min = std::min(last.min, min);
      last.varies = last.varies || endless || max > min;
    }
  }

  const std::string_view text_;
  const GrammarLimits& limits_;
  std::size_t at_ = 0;
  std::size_t elements_ = 0;
  std::vector<Rule> rules_;
  std::map<std::string, std::size_t> names_;
  std::optional<std::string> problem_;
};

// How many parts of a sequence each character may belong to. Between two parts that may both take
// a character and repeat, or be left out, libllama follows every way to share it out: with k parts
// and a token of n such characters (n + k - 1 choose n) of them, for each token of the vocabulary.
class SharedCharacters {
 public:
  // An element that may be left out.
  void add_optional(const CharacterSet& own) {
    for (std::size_t c = 0; c < counts_.size(); ++c) {
      counts_[c] = sum(counts_[c], own[c] ? 1 : 0);
    }
  }
  // A rule that may be left out, or be empty.
  void add_optional(const SharedCharacters& inner) {
    for (std::size_t c = 0; c < counts_.size(); ++c) {
      counts_[c] = sum(counts_[c], inner.counts_[c]);
    }
  }
  // An element that stands here, as one of these characters or as something longer.
  void add_present(const CharacterSet& own, bool varies) {
    for (std::size_t c = 0; c < counts_.size(); ++c) {
      counts_[c] = own[c] ? sum(counts_[c], varies ? 1 : 0) : std::uint8_t{0};
    }
  }
  void raise_to(const SharedCharacters& other) {
    for (std::size_t c = 0; c < counts_.size(); ++c) {
      counts_[c] = std::max(counts_[c], other.counts_[c]);
    }
  }
  std::size_t most() const { return *std::ranges::max_element(counts_); }

 private:
  static std::uint8_t sum(int a, int b) { return static_cast<std::uint8_t>(std::min(a + b, 255)); }

  std::array<std::uint8_t, kBeyondAscii + 1> counts_{};
};

// How rules begin. A rule that can begin with itself is left recursion, which libllama refuses too.
class Beginnings {
 public:
  Beginnings(const std::vector<Rule>& rules, const GrammarLimits& limits)
      : rules_(rules), limits_(limits), facts_(rules.size()) {}

  Expected<void> check() {
    for (std::size_t rule = 0; rule < rules_.size(); ++rule) {
      if (auto checked = visit(rule, 1); !checked) {
        return checked;
      }
    }
    return check_shared_characters();
  }

 private:
  enum class State { kNew, kOpen, kDone };
  struct Facts {
    State state = State::kNew;
    bool can_be_empty = false;
    std::size_t depth = 1;
    std::size_t beginnings = 1;
    CharacterSet alone;       // characters that are the whole of what the rule stands for
    SharedCharacters shared;  // of the alternatives that can be empty
  };

  // Into `shared`, which has what stands before the element. The element's rule has been visited.
  void add_element(const Element& element, SharedCharacters& shared) const {
    const bool is_terminal = element.rule == Element::kTerminal;
    const CharacterSet& own = is_terminal ? element.characters : facts_[element.rule].alone;
    const bool has_empty_rule = !is_terminal && facts_[element.rule].can_be_empty;
    if (has_empty_rule) {
      SharedCharacters inner = facts_[element.rule].shared;
      if (element.varies) {
        SharedCharacters repeated;
        repeated.add_optional(own);
        inner.raise_to(repeated);
      }
      shared.add_optional(inner);
    } else if (element.min == 0) {
      shared.add_optional(own);
    } else {
      shared.add_present(own, element.varies);
    }
  }

  Expected<void> check_shared_characters() const {
    for (const Rule& rule : rules_) {
      for (const std::vector<Element>& alternative : rule.alternatives) {
        SharedCharacters shared;
        for (const Element& element : alternative) {
          add_element(element, shared);
          if (shared.most() > limits_.shared) {
            return fail(StatusCode::kInvalidArgument,
                        fmt::format("the grammar has too many parts in a row that may be repeated "
                                    "or left out and may take the same character, allowed are up "
                                    "to {}",
                                    limits_.shared));
          }
        }
      }
    }
    return {};
  }

  // Recursion goes no deeper than limits_.reference_depth.
  Expected<void> visit(std::size_t rule, std::size_t depth) {
    Facts& facts = facts_[rule];
    if (facts.state == State::kDone) {
      return {};
    }
    if (facts.state == State::kOpen) {
      return fail(StatusCode::kInvalidArgument,
                  "the grammar has a rule that can begin with itself (left recursion)");
    }
    facts.state = State::kOpen;
    for (const std::vector<Element>& alternative : rules_[rule].alternatives) {
      bool is_empty_so_far = true;
      for (std::size_t i = 0; i < alternative.size() && is_empty_so_far; ++i) {
        const Element& element = alternative[i];
        Facts inner;
        if (element.rule != Element::kTerminal) {
          if (depth >= limits_.reference_depth) {
            return too_deep();
          }
          if (auto visited = visit(element.rule, depth + 1); !visited) {
            return visited;
          }
          inner = facts_[element.rule];
        }
        facts.depth = std::max(facts.depth, inner.depth + 1);
        // Of several copies the second one begins the rule if the first one is empty.
        facts.beginnings += inner.beginnings * (inner.can_be_empty ? element.copies : 1);
        if (facts.depth > limits_.reference_depth) {
          return too_deep();
        }
        if (facts.beginnings > limits_.beginnings) {
          return fail(StatusCode::kInvalidArgument,
                      fmt::format("the grammar has a rule that can begin in too many ways, allowed "
                                  "are up to {}",
                                  limits_.beginnings));
        }
        is_empty_so_far = element.min == 0 || inner.can_be_empty;
        if (alternative.size() == 1) {
          const bool is_terminal = element.rule == Element::kTerminal;
          facts.alone |= is_terminal ? element.characters : inner.alone;
        }
      }
      if (is_empty_so_far) {
        SharedCharacters shared;
        for (const Element& element : alternative) {
          add_element(element, shared);
        }
        facts.shared.raise_to(shared);
      }
      facts.can_be_empty = facts.can_be_empty || is_empty_so_far;
    }
    facts.state = State::kDone;
    return {};
  }

  Expected<void> too_deep() const {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("the grammar has rules that begin with rules too deep, allowed are "
                            "chains of up to {}",
                            limits_.reference_depth));
  }

  const std::vector<Rule>& rules_;
  const GrammarLimits& limits_;
  std::vector<Facts> facts_;
};

}  // namespace

Expected<void> check_grammar_cost(std::string_view gbnf, const GrammarLimits& limits) {
  auto rules = Reader(gbnf, limits).read();
  if (!rules) {
    return fail(std::move(rules.error()));
  }
  return Beginnings(*rules, limits).check();
}

}  // namespace karez
