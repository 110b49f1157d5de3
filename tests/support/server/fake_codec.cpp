#include "support/server/fake_codec.h"

namespace karez {
namespace {

constexpr std::string_view kStartText = "<|im_start|>";
constexpr std::string_view kEndText = "<|im_end|>";

void append(std::vector<TokenId>& tokens, std::string_view text) {
  for (const char c : text) {
    tokens.push_back(static_cast<unsigned char>(c));
  }
}

}  // namespace

Expected<std::vector<TokenId>> FakeCodec::tokenize(std::string_view text, bool,
                                                   bool parse_special) const {
  std::vector<TokenId> tokens;
  while (!text.empty()) {
    if (parse_special && text.starts_with(kStartText)) {
      tokens.push_back(kStart);
      text.remove_prefix(kStartText.size());
    } else if (parse_special && text.starts_with(kEndText)) {
      tokens.push_back(kEnd);
      text.remove_prefix(kEndText.size());
    } else {
      append(tokens, text.substr(0, 1));
      text.remove_prefix(1);
    }
  }
  return tokens;
}

Expected<std::vector<TokenId>> FakeCodec::tokenize_chat(std::span<const ChatTurn> turns,
                                                        bool add_generation_prompt) const {
  std::vector<TokenId> tokens;
  for (const ChatTurn& turn : turns) {
    tokens.push_back(kStart);
    append(tokens, turn.role + "\n" + turn.content);
    tokens.push_back(kEnd);
    append(tokens, "\n");
  }
  if (add_generation_prompt) {
    tokens.push_back(kStart);
    append(tokens, "assistant\n");
  }
  return tokens;
}

std::string FakeCodec::piece(TokenId token, bool render_special) const {
  if (token == kStart || token == kEnd) {
    return render_special ? std::string(token == kStart ? kStartText : kEndText) : std::string();
  }
  return std::string(1, static_cast<char>(token));
}

Expected<void> FakeCodec::check_grammar(const std::string& grammar) const {
  if (grammar.find("root ::=") == std::string::npos) {
    return fail(StatusCode::kInvalidArgument, "the grammar has no rule named root");
  }
  return {};
}

}  // namespace karez
