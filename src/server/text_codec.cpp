#include "server/text_codec.h"

namespace karez {

std::string text_of(const TextCodec& codec, std::span<const TokenId> tokens, bool render_special) {
  std::string text;
  for (const TokenId token : tokens) {
    text += codec.piece(token, render_special);
  }
  return text;
}

}  // namespace karez
