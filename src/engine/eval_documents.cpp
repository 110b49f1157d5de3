#include "engine/eval_documents.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <random>
#include <utility>

#include "base/check.h"

namespace karez {
namespace {

constexpr std::array<std::string_view, 64> kNames = {
    "Adam",   "Agnes",  "Albert", "Alice", "Amos",    "Anna",   "Arthur", "Barbara",
    "Ben",    "Bruce",  "Carl",   "Carol", "Charles", "Clara",  "Daniel", "David",
    "Diana",  "Donald", "Dora",   "Edgar", "Edward",  "Elena",  "Ellen",  "Emily",
    "Eric",   "Esther", "Eva",    "Felix", "Flora",   "Frank",  "George", "Grace",
    "Hannah", "Harold", "Helen",  "Henry", "Hugo",    "Irene",  "Isaac",  "Jacob",
    "James",  "Jane",   "Jason",  "Julia", "Karen",   "Laura",  "Leo",    "Linda",
    "Lucas",  "Maria",  "Martin", "Nancy", "Nina",    "Oliver", "Oscar",  "Paula",
    "Peter",  "Rachel", "Robert", "Rosa",  "Sarah",   "Simon",  "Thomas", "Victor"};

constexpr int kDigits = 5;

// std::shuffle and the standard distributions differ between libraries; this does not.
template <class Item>
void shuffle(std::vector<Item>& items, std::mt19937_64& random) {
  for (std::size_t i = items.size(); i > 1; --i) {
    std::swap(items[i - 1], items[random() % i]);
  }
}

struct Fact {
  Needle needle;
  std::vector<TokenId> planted;
  std::vector<TokenId> question;
  std::vector<int> answer;  // tokens of the question
};

std::string planted_sentence(const NeedleOptions& options, const Needle& needle) {
  return options.kind == DocumentKind::kPassKey
             ? fmt::format(" The pass key is {}. Remember it.", needle.digits)
             : fmt::format(" The locker number of {} is {}.", needle.name, needle.digits);
}

std::string question_of(const NeedleOptions& options, const Needle& needle) {
  return options.kind == DocumentKind::kPassKey
             ? fmt::format("\nWhat is the pass key? The pass key is {}.", needle.digits)
             : fmt::format("\nThe locker number of {} is {}.", needle.name, needle.digits);
}

// The tokens that hold any of the digits, however the vocabulary cuts them.
std::vector<int> tokens_of_answer(std::span<const TokenId> question, const std::string& digits,
                                  const DocumentVocabulary& vocabulary) {
  std::string text;
  std::vector<std::size_t> ends;
  for (const TokenId token : question) {
    text += vocabulary.piece(token);
    ends.push_back(text.size());
  }
  const std::size_t first = text.rfind(digits);
  std::vector<int> result;
  for (std::size_t i = 0; first != std::string::npos && i < ends.size(); ++i) {
    const std::size_t begin = i == 0 ? 0 : ends[i - 1];
    if (begin < first + digits.size() && ends[i] > first) {
      result.push_back(static_cast<int>(i));
    }
  }
  return result;
}

Expected<std::vector<Fact>> make_facts(const NeedleOptions& options,
                                       const DocumentVocabulary& vocabulary,
                                       std::mt19937_64& random) {
  std::vector<std::string_view> names(kNames.begin(), kNames.end());
  shuffle(names, random);
  std::vector<Fact> facts;
  for (int i = 0; i < options.count; ++i) {
    Fact fact;
    if (options.kind == DocumentKind::kNeedles) {
      fact.needle.name = names[static_cast<std::size_t>(i)];
    }
    fact.needle.digits += static_cast<char>('1' + random() % 9);
    while (fact.needle.digits.size() < kDigits) {
      fact.needle.digits += static_cast<char>('0' + random() % 10);
    }
    auto planted = vocabulary.tokenize(planted_sentence(options, fact.needle));
    auto question = vocabulary.tokenize(question_of(options, fact.needle));
    if (!planted || !question) {
      return fail(planted ? question.error() : planted.error());
    }
    fact.planted = std::move(*planted);
    fact.question = std::move(*question);
    fact.answer = tokens_of_answer(fact.question, fact.needle.digits, vocabulary);
    if (fact.answer.empty()) {
      return fail(StatusCode::kUnimplemented,
                  "planted numbers do not survive this model's tokenizer, so needles and pass keys "
                  "cannot be asked for");
    }
    facts.push_back(std::move(fact));
  }
  return facts;
}

bool ends_sentence(const std::string& piece) {
  const std::size_t last = piece.find_last_not_of(" \n");
  return last != std::string::npos &&
         (piece[last] == '.' || piece[last] == '!' || piece[last] == '?');
}

// Of the first place from `target` on that lies behind a sentence; target itself if there is none
// nearby.
std::size_t next_break(std::span<const TokenId> filler, std::size_t target,
                       const DocumentVocabulary& vocabulary) {
  constexpr std::size_t kNearby = 64;
  const std::size_t end = std::min(filler.size(), target + kNearby);
  for (std::size_t i = target; i < end; ++i) {
    if (i > 0 && ends_sentence(vocabulary.piece(filler[i - 1]))) {
      return i;
    }
  }
  return target;
}

}  // namespace

int max_needles() { return static_cast<int>(kNames.size()); }

Expected<EvalDocument> plant_needles(std::string name, std::span<const TokenId> filler, int length,
                                     int min_decoded, const NeedleOptions& options,
                                     const DocumentVocabulary& vocabulary) {
  KAREZ_CHECK(options.count >= 1 && options.count <= max_needles() &&
                  (options.kind == DocumentKind::kNeedles || options.count == 1),
              "checked by the caller");
  std::mt19937_64 random(options.seed);
  auto facts = make_facts(options, vocabulary, random);
  if (!facts) {
    return fail(facts.error());
  }
  std::size_t planted = 0;
  std::size_t asked = 0;
  for (const Fact& fact : *facts) {
    planted += fact.planted.size();
    asked += fact.question.size();
  }
  const auto total = static_cast<std::size_t>(std::max(length, 0));
  // The begin token, and something before the first needle and behind the last.
  constexpr std::size_t kLeastFiller = 32;
  if (total < planted + asked + kLeastFiller) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("{}: {} planted sentences and their questions need a length of {} "
                            "tokens at least; it is {}",
                            name, facts->size(), planted + asked + kLeastFiller, length));
  }
  const std::size_t needed = total - planted - asked;
  if (filler.size() < needed) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("{}: the filler text has {} tokens; {} are needed", name, filler.size(),
                            needed));
  }
  filler = filler.first(needed);

  EvalDocument document;
  document.name = std::move(name);
  document.kind = options.kind;
  const auto prompt = static_cast<double>(total - asked);
  std::size_t taken = 0;  // of the filler
  for (std::size_t i = 0; i < facts->size(); ++i) {
    const double part =
        facts->size() == 1 ? 0 : static_cast<double>(i) / static_cast<double>(facts->size() - 1);
    const double depth = options.first_depth + (options.last_depth - options.first_depth) * part;
    const auto target = static_cast<std::size_t>(std::lround(depth * prompt));
    const std::size_t wanted = target > document.tokens.size()
                                   ? taken + (target - document.tokens.size())
                                   : std::max<std::size_t>(taken, 1);
    const std::size_t place = next_break(filler, std::min(wanted, filler.size()), vocabulary);
    document.tokens.insert(document.tokens.end(),
                           filler.begin() + static_cast<std::ptrdiff_t>(taken),
                           filler.begin() + static_cast<std::ptrdiff_t>(place));
    taken = place;
    Fact& fact = (*facts)[i];
    fact.needle.position = static_cast<int>(document.tokens.size());
    fact.needle.depth = static_cast<double>(fact.needle.position) / prompt;
    document.tokens.insert(document.tokens.end(), fact.planted.begin(), fact.planted.end());
  }
  document.tokens.insert(document.tokens.end(), filler.begin() + static_cast<std::ptrdiff_t>(taken),
                         filler.end());

  std::vector<std::size_t> order(facts->size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    order[i] = i;
  }
  shuffle(order, random);
  for (const std::size_t i : order) {
    Fact& fact = (*facts)[i];
    for (const int token : fact.answer) {
      fact.needle.answer_positions.push_back(static_cast<int>(document.tokens.size()) + token);
    }
    document.tokens.insert(document.tokens.end(), fact.question.begin(), fact.question.end());
  }
  for (Fact& fact : *facts) {
    document.needles.push_back(std::move(fact.needle));
  }
  // At least one token of prompt has to be left.
  document.num_decoded =
      std::min(std::max(min_decoded, static_cast<int>(asked)), std::max(length - 1, 1));
  return document;
}

}  // namespace karez
