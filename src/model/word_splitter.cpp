#include "model/word_splitter.h"

#include <algorithm>
#include <array>
#include <cstdint>

namespace karez {
namespace {

// A match is at most three of the first kind, or one of each. Stacks of 8 MiB take 16,384
// characters in every pre-tokenizer of libllama.
constexpr std::size_t kMaxLikeCharacters = 2048;
constexpr std::size_t kMaxLineCharacters = 8192;

// Names with which 200,000 characters of each kind went through libllama.
constexpr auto kLoops = std::to_array<std::string_view>(
    {"gpt-2",        "llama-bpe",      "llama3", "falcon3",          "lfm2",      "pixtral",
     "qwen2",        "qwen35",         "smollm", "deepseek-r1-qwen", "smaug-bpe", "stablelm2",
     "olmo",         "phi-2",          "dbrx",   "starcoder",        "mpt",       "roberta-bpe",
     "minerva-7b",   "chatglm-bpe",    "glm4",   "command-r",        "trillion",  "exaone",
     "jina-v2-code", "granite-docling"});
constexpr auto kLikeChars =
    std::to_array<std::string_view>({"", "default", "tekken", "gpt-4o", "llama4", "deepseek-llm",
                                     "deepseek-coder", "deepseek-v3", "falcon"});

enum Class : unsigned { kLetter, kDigit, kOther, kSpace, kForeign, kWithinALine, kNumClasses };
constexpr std::array<std::string_view, kNumClasses> kNames = {"letters",
                                                              "digits",
                                                              "punctuation marks and symbols",
                                                              "white space",
                                                              "letters and signs beyond ASCII",
                                                              "characters without a line break"};

constexpr unsigned bit(Class one) { return 1U << one; }

bool is_between(std::uint32_t c, std::uint32_t first, std::uint32_t last) {
  return c >= first && c <= last;
}

// The classes that a character may be in.
unsigned classes_of(std::uint32_t c) {
  if (c == '\n' || c == '\r') {
    return bit(kSpace);
  }
  const unsigned line = bit(kWithinALine);
  if (c < 0x80) {
    if (is_between(c | 0x20U, 'a', 'z')) {
      return line | bit(kLetter);
    }
    if (is_between(c, '0', '9')) {
      return line | bit(kDigit);
    }
    if (c == ' ' || is_between(c, '\t', '\r')) {
      return line | bit(kSpace);
    }
    // Some take slashes together with the line breaks behind a mark.
    return line | bit(kOther) | (c == '/' ? bit(kSpace) : 0U);
  }
  if (c == 0x85 || c == 0xA0 || c == 0x1680 || is_between(c, 0x2000, 0x200A) || c == 0x2028 ||
      c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000) {
    return line | bit(kSpace) | bit(kForeign);
  }
  // Punctuation of Chinese and Japanese, where no white space ends a run.
  if (c == 0x3001 || c == 0x3002 || is_between(c, 0xFF01, 0xFF0F) ||
      is_between(c, 0xFF1A, 0xFF20) || is_between(c, 0x2018, 0x201F)) {
    return line | bit(kOther);
  }
  if (is_between(c, 0x3400, 0x4DBF) || is_between(c, 0x4E00, 0x9FFF) ||
      is_between(c, 0x3041, 0x3096) || is_between(c, 0x30A1, 0x30FA) ||
      is_between(c, 0xAC00, 0xD7A3)) {
    return line | bit(kLetter) | bit(kForeign);
  }
  return line | bit(kLetter) | bit(kDigit) | bit(kOther) | bit(kForeign);
}

// The character at `at`, which moves behind it.
std::uint32_t next_character(std::string_view text, std::size_t& at) {
  const auto lead = static_cast<unsigned char>(text[at++]);
  std::uint32_t c = lead;
  if (lead >= 0xC0) {
    c = lead >= 0xF0 ? lead & 0x07U : lead >= 0xE0 ? lead & 0x0FU : lead & 0x1FU;
    while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80) {
      c = (c << 6U) | (static_cast<unsigned char>(text[at++]) & 0x3FU);
    }
  }
  return c;
}

}  // namespace

WordSplitter word_splitter_of(std::string_view model, std::string_view pre) {
  if (model != "gpt2" || std::ranges::find(kLoops, pre) != kLoops.end()) {
    return WordSplitter::kLoop;
  }
  return std::ranges::find(kLikeChars, pre) != kLikeChars.end() ? WordSplitter::kRegexOfLikeChars
                                                                : WordSplitter::kRegexWithinALine;
}

std::optional<LongRun> find_long_run(std::string_view text, WordSplitter splitter) {
  if (splitter == WordSplitter::kLoop || text.size() <= kMaxLikeCharacters) {
    return std::nullopt;
  }
  std::array<LongRun, kNumClasses> runs;
  for (std::size_t i = 0; i < kNumClasses; ++i) {
    runs[i].allowed = i == kWithinALine ? kMaxLineCharacters : kMaxLikeCharacters;
    runs[i].what = kNames[i];
  }
  const unsigned looked_at = splitter == WordSplitter::kRegexWithinALine ? ~0U : ~bit(kWithinALine);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const unsigned classes = classes_of(next_character(text, at)) & looked_at;
    for (unsigned i = 0; i < kNumClasses; ++i) {
      LongRun& run = runs[i];
      if ((classes >> i & 1U) != 0) {
        run.begin = run.characters++ == 0 ? begin : run.begin;
      } else if (run.characters > run.allowed) {
        return run;
      } else {
        run.characters = 0;
      }
    }
  }
  const auto last =
      std::ranges::find_if(runs, [](const LongRun& run) { return run.characters > run.allowed; });
  return last == runs.end() ? std::nullopt : std::optional(*last);
}

}  // namespace karez
