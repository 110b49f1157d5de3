// Which texts libllama can cut into words.
//
// A byte-level BPE vocabulary names how texts are cut before tokens are looked for
// (tokenizer.ggml.pre). libllama has loops for some of these names. For the others it uses
// std::regex, which calls itself once for each character of a match: 20,000 letters in a row
// overflow a stack of 8 MiB, which no caller can catch. Such texts are found here first.
// Thread: pure.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace karez {

enum class WordSplitter {
  kLoop,              // takes every text
  kRegexOfLikeChars,  // std::regex; a match is characters of one class
  kRegexWithinALine,  // std::regex; a match may be anything without a line break
};

// Of a vocabulary with this tokenizer.ggml.model and tokenizer.ggml.pre; empty: without that key.
WordSplitter word_splitter_of(std::string_view model, std::string_view pre);

struct LongRun {
  std::size_t begin = 0;       // byte
  std::size_t characters = 0;  // of the whole run
  std::size_t allowed = 0;
  std::string_view what;  // "letters"
};

// The first run of characters that is too long for this splitter. Characters whose class takes a
// Unicode table to tell count in each one that they might be in. text: UTF-8.
std::optional<LongRun> find_long_run(std::string_view text, WordSplitter splitter);

}  // namespace karez
