// The TextCodec of a model's own vocabulary.
//
// Thread: const calls may run concurrently. Does not own the tokenizer, which must outlive it.
#pragma once

#include "server/text_codec.h"

namespace karez {

class Tokenizer;

class TokenizerCodec final : public TextCodec {
 public:
  explicit TokenizerCodec(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  Expected<std::vector<TokenId>> tokenize(std::string_view text, bool add_special,
                                          bool parse_special) const override;
  Expected<std::vector<TokenId>> tokenize_chat(std::span<const ChatTurn> turns,
                                               bool add_generation_prompt) const override;
  std::string piece(TokenId token, bool render_special) const override;
  int vocab_size() const override;
  std::size_t max_piece_bytes() const override;
  Expected<void> check_grammar(const std::string& grammar) const override;

 private:
  const Tokenizer& tokenizer_;
};

}  // namespace karez
