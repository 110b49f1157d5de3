// Text to token ids and back, and the model's chat template. libllama's vocabulary underneath.
//
// libllama has no template language: it recognises the templates of known model families by their
// text and renders them itself (llama_chat_apply_template). A system message of the model's own is
// kept (default_system_message.h); what else a template does beside its family's format is not.
// Thread: const calls may run concurrently.
// Owns: libllama's model object, loaded without weights.
#pragma once

#include <cstddef>
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
  // Loads the vocabulary only, not the weights. chat_template: used instead of the file's, unless
  // empty; a template's text or one of libllama's names for those it knows ("chatml", "gemma").
  // Fails: as GgufFile::open(); kCorruption if the tokenizer's keys are missing or malformed.
  static Expected<std::unique_ptr<Tokenizer>> load(const std::string& path,
                                                   const std::string& chat_template = {});
  ~Tokenizer();

  // add_special: the model's own begin/end tokens, unless the text brings its begin token itself.
  // parse_special: control tokens written in the text (<|im_start|>) become those tokens; false
  // keeps them text, which user input must be.
  // Fails: kInvalidArgument with the byte offset if text is not UTF-8, or if it is longer than
  // 2^31 - 1 bytes, or if it has a run of like characters that libllama cannot cut into words with
  // this vocabulary (word_splitter.h).
  Expected<std::vector<TokenId>> tokenize(std::string_view text, bool add_special,
                                          bool parse_special) const;
  // The bytes of one token; may be part of a UTF-8 character. render_special: control tokens as
  // their text instead of nothing. Empty for an id outside the vocabulary.
  std::string piece(TokenId token, bool render_special) const;

  // Whether generation ends here (end of text, end of turn).
  bool is_end_of_generation(TokenId token) const;
  int vocab_size() const;
  // Of the longest token: a text of more than n times as many bytes has more than n tokens.
  std::size_t max_piece_bytes() const;

  bool has_chat_template() const;
  // The prompt tokens of a conversation in the model's own format, after the model's own system
  // message if it has one and the conversation does not begin with one. Control tokens inside the
  // messages' contents stay text, and so do marks that the model's template writes as user-defined
  // tokens (</think>). Otherwise the tokens are those that libllama gives for the rendered text.
  // Fails: kUnimplemented if the model has no template or libllama does not know it;
  //        kInvalidArgument for no messages, an unknown role, or a content that is not UTF-8 or
  //        has a run as above.
  Expected<std::vector<TokenId>> tokenize_chat(std::span<const ChatMessage> messages,
                                               bool add_generation_prompt) const;

  struct Impl;  // also what the sampler chain is made from
  const Impl& impl() const { return *impl_; }

 private:
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace karez
