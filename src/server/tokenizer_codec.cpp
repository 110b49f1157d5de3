#include "server/tokenizer_codec.h"

#include "model/llama_sampler.h"
#include "model/tokenizer.h"

namespace karez {

Expected<std::vector<TokenId>> TokenizerCodec::tokenize(std::string_view text, bool add_special,
                                                        bool parse_special) const {
  return tokenizer_.tokenize(text, add_special, parse_special);
}

Expected<std::vector<TokenId>> TokenizerCodec::tokenize_chat(std::span<const ChatTurn> turns,
                                                             bool add_generation_prompt) const {
  std::vector<ChatMessage> messages;
  messages.reserve(turns.size());
  for (const ChatTurn& turn : turns) {
    messages.push_back({turn.role, turn.content});
  }
  return tokenizer_.tokenize_chat(messages, add_generation_prompt);
}

std::string TokenizerCodec::piece(TokenId token, bool render_special) const {
  return tokenizer_.piece(token, render_special);
}

int TokenizerCodec::vocab_size() const { return tokenizer_.vocab_size(); }

std::size_t TokenizerCodec::max_piece_bytes() const { return tokenizer_.max_piece_bytes(); }

Expected<void> TokenizerCodec::check_grammar(const std::string& grammar) const {
  // The sampler is the one reader of grammars; making one is the check.
  SamplingParams params;
  params.grammar = grammar;
  auto sampler = make_llama_sampler(tokenizer_, params, /*context_tokens=*/0);
  if (!sampler) {
    return fail(std::move(sampler.error()));
  }
  return {};
}

}  // namespace karez
