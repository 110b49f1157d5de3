#include "engine/eval_corpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "kv/compression_schedule.h"

namespace karez {
namespace {

constexpr int kDefaultLength = 7904;

Expected<void> check_generated(const EvalOptions& options, int length) {
  if (options.generated_tokens >= length) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("--generate is {} and --length {}; at least one token of a text has to "
                            "be prompt",
                            options.generated_tokens, length));
  }
  const int generated = length - tokens_before_generated(options, length);
  if (generated < options.decode_tokens) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("--decode-tokens is {}; of a text of {} tokens {} count as generated "
                            "(--generate), which is the most that can be compared",
                            options.decode_tokens, length, std::max(generated, 0)));
  }
  return {};
}

// Where hidden sentences lie: [begin, end).
struct TokenSpan {
  int begin = 0;
  int end = 0;
};

class DocumentMaker {
 public:
  DocumentMaker(const EvalOptions& options, const std::vector<int>& lengths,
                const Tokenizer& tokenizer)
      : options_(options), lengths_(lengths), tokenizer_(tokenizer) {}

  Expected<std::vector<EvalDocument>> make() {
    for (const EvalText& text : options_.texts) {
      if (auto done = add_text(text); !done) {
        return fail(done.error());
      }
    }
    if (options_.num_needles > 0 || options_.pass_key) {
      if (auto done = add_planted(); !done) {
        return fail(done.error());
      }
    }
    return std::move(documents_);
  }

 private:
  std::string name_of(const std::string& name, int length) const {
    return lengths_.size() > 1 ? fmt::format("{} {}", name, length) : name;
  }

  Expected<void> add_text(const EvalText& text) {
    const auto tokens = tokens_of(text, tokenizer_);
    if (!tokens) {
      return fail(tokens.error());
    }
    for (const int length : lengths_) {
      if (tokens->size() < static_cast<std::size_t>(length)) {
        return fail(StatusCode::kInvalidArgument,
                    fmt::format("{} has {} tokens; {} are needed (--length)", text.name,
                                tokens->size(), length));
      }
      documents_.push_back({.name = name_of(text.name, length),
                            .kind = DocumentKind::kText,
                            .tokens = {tokens->begin(), tokens->begin() + length},
                            .num_decoded = options_.decode_tokens,
                            .needles = {}});
    }
    return {};
  }

  Expected<void> add_planted() {
    auto filler = tokens_of(options_.filler, tokenizer_);
    if (!filler) {
      return fail(filler.error());
    }
    filler_ = std::move(*filler);
    for (const int length : lengths_) {
      if (options_.num_needles > 0) {
        auto planted = plant(name_of("needles", length), length, options_.decode_tokens,
                             {.count = options_.num_needles, .seed = options_.seed});
        if (!planted) {
          return planted;
        }
      }
      for (const double depth : kPassKeyDepths) {
        if (!options_.pass_key) {
          break;
        }
        auto planted = plant(fmt::format("pass key {} {:.0f} %", length, depth * 100), length, 1,
                             {.kind = DocumentKind::kPassKey,
                              .count = 1,
                              .first_depth = depth,
                              .last_depth = depth,
                              .seed = options_.seed});
        if (!planted) {
          return planted;
        }
        // Where windows are compressed it is planted within what they hold.
        if (is_generated(options_)) {
          EvalDocument& document = documents_.back();
          document.name =
              fmt::format("pass key {} {:.0f} %", length, document.needles.front().depth * 100);
        }
      }
    }
    return {};
  }

  Expected<void> plant(const std::string& name, int length, int min_decoded,
                       NeedleOptions needles) {
    const bool is_generated = karez::is_generated(options_);
    TokenSpan span;
    if (is_generated) {
      // The questions' length is known once they are made.
      const auto draft = plant_at(name, length, 1, needles);
      if (!draft) {
        return fail(draft.error());
      }
      const int asked_at = length - draft->num_decoded;
      const auto compressed = compressed_part(name, length, asked_at);
      if (!compressed) {
        return fail(compressed.error());
      }
      span = *compressed;
      place_within(span, asked_at, needles);
    }
    auto document = plant_at(name, length, min_decoded, needles);
    if (!document) {
      return fail(document.error());
    }
    for (const Needle& needle : document->needles) {
      if (is_generated &&
          (needle.position < span.begin || needle.position + kSentenceTokens > span.end)) {
        return fail(StatusCode::kInvalidArgument,
                    fmt::format("{}: {} planted sentences do not fit into the {} tokens that are "
                                "compressed before they are asked for",
                                name, needles.count, span.end - span.begin));
      }
    }
    documents_.push_back(std::move(*document));
    return {};
  }

  Expected<EvalDocument> plant_at(const std::string& name, int length, int min_decoded,
                                  const NeedleOptions& needles) {
    const DocumentVocabulary vocabulary = {
        [&](std::string_view text) { return tokenizer_.tokenize(text, false, false); },
        [&](TokenId token) { return tokenizer_.piece(token, false); }};
    auto document = plant_needles(name, filler_, length, min_decoded, needles, vocabulary);
    if (!document) {
      return fail(document.error().code(),
                  fmt::format("{} in {}", document.error().message(), options_.filler.name));
    }
    return document;
  }

  // Of windows that are compressed when the first question is read.
  Expected<TokenSpan> compressed_part(const std::string& name, int length, int asked_at) const {
    const CompressionSchedule schedule =
        schedule_of(*options_.modes.front().compression, tokens_before_generated(options_, length),
                    kBlockSize, 0);
    int windows = 0;
    while (schedule.publication_of(windows) <= asked_at) {
      ++windows;
    }
    const TokenSpan span{schedule.first_position, static_cast<int>(schedule.begin_of(windows))};
    if (span.end - span.begin < kPlaceTokens) {
      return fail(StatusCode::kInvalidArgument,
                  fmt::format("{}: of {} tokens, the questions begin behind {} and {} before them "
                              "are compressed by then, too few to hide something in (--length, "
                              "--generate, --compress-window, --compress-recent)",
                              name, length, asked_at, span.end - span.begin));
    }
    return span;
  }

  // Depths over the whole text become depths over the part.
  static void place_within(TokenSpan span, int asked_at, NeedleOptions& needles) {
    const double first = span.begin;
    const double room = span.end - kPlaceTokens - span.begin;
    for (double* depth : {&needles.first_depth, &needles.last_depth}) {
      *depth = (first + *depth * room) / asked_at;
    }
  }

  static constexpr int kSentenceTokens = 48;
  // A sentence, and the way to the next place between two.
  static constexpr int kPlaceTokens = 64 + kSentenceTokens;

  const EvalOptions& options_;
  const std::vector<int>& lengths_;
  const Tokenizer& tokenizer_;
  std::vector<TokenId> filler_;
  std::vector<EvalDocument> documents_;
};

}  // namespace

Expected<std::vector<TokenId>> tokens_of(const EvalText& text, const Tokenizer& tokenizer) {
  auto tokens = tokenizer.tokenize(text.text, /*add_special=*/true, /*parse_special=*/false);
  if (!tokens) {
    return fail(tokens.error().code(), fmt::format("{}: {}", text.name, tokens.error().message()));
  }
  return tokens;
}

Expected<std::vector<int>> document_lengths(const EvalOptions& options, const ModelConfig& config) {
  std::vector<int> lengths = options.lengths;
  if (lengths.empty()) {
    lengths = {std::min(kDefaultLength, config.context_length)};
  }
  for (const int length : lengths) {
    if (length > config.context_length) {
      return fail(StatusCode::kInvalidArgument,
                  fmt::format("--length is {}; the model has a context of {} tokens", length,
                              config.context_length));
    }
    if (length < options.decode_tokens + 2) {
      return fail(StatusCode::kInvalidArgument,
                  fmt::format("--length is {}; with --decode-tokens {} it has to be {} at least",
                              length, options.decode_tokens, options.decode_tokens + 2));
    }
    if (is_generated(options)) {
      if (auto fits = check_generated(options, length); !fits) {
        return fail(fits.error());
      }
    }
  }
  return lengths;
}

Expected<std::vector<EvalDocument>> make_documents(const EvalOptions& options,
                                                   const std::vector<int>& lengths,
                                                   const Tokenizer& tokenizer) {
  return DocumentMaker(options, lengths, tokenizer).make();
}

bool is_generated(const EvalOptions& options) {
  return options.modes.front().compression.has_value();
}

int tokens_before_generated(const EvalOptions& options, int length_tokens) {
  constexpr int kPromptTokens = 64;
  return options.generated_tokens > 0 ? length_tokens - options.generated_tokens : kPromptTokens;
}

}  // namespace karez
