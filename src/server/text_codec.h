// Text to tokens and back, as the server needs it.
//
// An interface, so that the server's tests need no model (tokenizer_codec.h has the real one).
// Thread: const calls may run concurrently.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/token.h"

namespace karez {

struct ChatTurn {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

class TextCodec {
 public:
  virtual ~TextCodec() = default;

  // As Tokenizer::tokenize(), tokenize_chat(), piece().
  virtual Expected<std::vector<TokenId>> tokenize(std::string_view text, bool add_special,
                                                  bool parse_special) const = 0;
  virtual Expected<std::vector<TokenId>> tokenize_chat(std::span<const ChatTurn> turns,
                                                       bool add_generation_prompt) const = 0;
  virtual std::string piece(TokenId token, bool render_special) const = 0;
  virtual int vocab_size() const = 0;
  // Of the longest token: a text of n times as many bytes has at least n tokens.
  virtual std::size_t max_piece_bytes() const = 0;
  // Fails: kInvalidArgument for a text that is no GBNF grammar with a rule named root.
  virtual Expected<void> check_grammar(const std::string& grammar) const = 0;
};

// The text of tokens, one after the other.
std::string text_of(const TextCodec& codec, std::span<const TokenId> tokens, bool render_special);

}  // namespace karez
