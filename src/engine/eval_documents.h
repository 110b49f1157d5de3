// What `karez eval` reads: texts, and texts with planted facts that are asked for at the end.
//
// Planted: sentences such as "The locker number of NAME is DDDDD." go between sentences of a filler
// text, spread over its depth; the document ends with all of them once more, in another order. The
// digits at the end can be known only from the planted sentences. The same seed gives the same
// document.
//
// Thread: values and functions without state.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/token.h"

namespace karez {

struct Needle {
  std::string name;                   // who is asked for; empty for a pass key
  std::string digits;                 // that answer
  int position = 0;                   // of the first token of the planted sentence
  double depth = 0;                   // position / tokens before the questions
  std::vector<int> answer_positions;  // tokens of the question that are the answer, ascending
};

enum class DocumentKind { kText, kNeedles, kPassKey };

struct EvalDocument {
  std::string name;
  DocumentKind kind = DocumentKind::kText;
  std::vector<TokenId> tokens;
  int num_decoded = 0;  // the last tokens, which are predicted; the rest is prompt
  std::vector<Needle> needles;
};

// What the generator needs to know about a vocabulary.
struct DocumentVocabulary {
  std::function<Expected<std::vector<TokenId>>(std::string_view)> tokenize;  // no special tokens
  std::function<std::string(TokenId)> piece;
};

struct NeedleOptions {
  DocumentKind kind = DocumentKind::kNeedles;
  int count = 16;             // at most max_needles(); of a pass key: 1
  double first_depth = 0.04;  // of the first, of the tokens before the questions
  double last_depth = 0.84;   // the rest lies evenly between
  std::uint64_t seed = 1;
};

int max_needles();

// A document of `length` tokens. filler: tokens of a text, begin token included. min_decoded: at
// least so many of the last tokens are predicted, and all of the questions.
// Fails: kInvalidArgument, naming the figures, if the filler is too short or the length leaves no
// room for the planted sentences and questions; as tokenize().
Expected<EvalDocument> plant_needles(std::string name, std::span<const TokenId> filler, int length,
                                     int min_decoded, const NeedleOptions& options,
                                     const DocumentVocabulary& vocabulary);

}  // namespace karez
