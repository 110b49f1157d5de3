// A vocabulary of bytes, for tests of the server: token 0 to 255 are bytes, 256 and 257 are the
// control tokens <|im_start|> and <|im_end|>.
//
// Thread: const calls may run concurrently.
#pragma once

#include "server/text_codec.h"

namespace karez {

class FakeCodec : public TextCodec {
 public:
  static constexpr TokenId kStart = 256;
  static constexpr TokenId kEnd = 257;

  Expected<std::vector<TokenId>> tokenize(std::string_view text, bool add_special,
                                          bool parse_special) const override;
  Expected<std::vector<TokenId>> tokenize_chat(std::span<const ChatTurn> turns,
                                               bool add_generation_prompt) const override;
  std::string piece(TokenId token, bool render_special) const override;
  int vocab_size() const override { return 258; }
  std::size_t max_piece_bytes() const override { return 12; }
  // Valid is what has a rule named root.
  Expected<void> check_grammar(const std::string& grammar) const override;
};

}  // namespace karez
