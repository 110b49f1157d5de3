// What Tokenizer, the chat template and the sampler share. Private to model/.
//
// Thread: immutable after Tokenizer::load().
#pragma once

#include <llama.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/tokenizer.h"
#include "model/word_splitter.h"

namespace karez {

struct LlamaModelDeleter {
  void operator()(llama_model* model) const { llama_model_free(model); }
};

// A token that is written out as a mark in a text: <|im_start|>, </s>, </think>.
struct SpecialToken {
  TokenId id;
  std::string text;
  bool is_unknown;    // stands for text that the vocabulary lacks
  bool strips_left;   // white space before it belongs to it
  bool strips_right;  // white space after it belongs to it
};

struct Tokenizer::Impl {
  std::string path;  // for messages
  std::unique_ptr<llama_model, LlamaModelDeleter> model;
  const llama_vocab* vocab = nullptr;
  std::string chat_template;           // empty: none
  std::string default_system_message;  // that the template writes; empty: none
  std::size_t max_piece_bytes = 4;     // one unknown character may be one token
  WordSplitter splitter = WordSplitter::kRegexWithinALine;

  // Longest first, as libllama looks for them.
  std::vector<SpecialToken> control_tokens;
  // User-defined tokens that the chat template writes. libllama finds user-defined tokens in every
  // text, also where control tokens stay text.
  std::vector<SpecialToken> template_marks;

  // libllama's tokenizer, without a check of the text's characters. Fails: kInvalidArgument if the
  // text is too long, or has a run of characters that is (word_splitter.h).
  Expected<std::vector<TokenId>> tokenize_raw(std::string_view text, bool add_special,
                                              bool parse_special) const;
};

}  // namespace karez
