// Text to token ids and back, and the model's chat template. libllama's vocabulary underneath.
//
// Thread: const calls may run concurrently.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/forward_batch.h"

namespace karez {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

class Tokenizer {
 public:
  // Loads the vocabulary only, not the weights.
  // Fails: as GgufFile::open(); kCorruption if the tokenizer's keys are missing or malformed.
  static Expected<std::unique_ptr<Tokenizer>> load(const std::string& path);
  ~Tokenizer();

  // add_special: the model's own begin/end tokens. parse_special: control tokens written in the
  // text (<|im_start|>) become those tokens; false keeps them text, which user input must be.
  // Fails: kInvalidArgument with the byte offset if text is not UTF-8.
  Expected<std::vector<TokenId>> tokenize(std::string_view text, bool add_special,
                                          bool parse_special) const;
  // The bytes of one token; may be part of a UTF-8 character. render_special: control tokens as
  // their text instead of nothing.
  std::string piece(TokenId token, bool render_special) const;

  // Whether generation ends here (end of text, end of turn).
  bool is_end_of_generation(TokenId token) const;
  int vocab_size() const;

  bool has_chat_template() const;
  // The prompt tokens of a conversation in the model's own format. Control tokens inside the
  // messages' contents stay text.
  // Fails: kUnimplemented if the model has no template or libllama does not know it.
  Expected<std::vector<TokenId>> tokenize_chat(std::span<const ChatMessage> messages,
                                               bool add_generation_prompt) const;

  struct Impl;  // also what the sampler chain is made from
  const Impl& impl() const { return *impl_; }

 private:
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace karez
