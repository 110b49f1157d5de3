#include "model/default_system_message.h"

#include <optional>

namespace karez {
namespace {

constexpr std::string_view kBegin = "<|im_start|>system";
constexpr std::string_view kEnd = "<|im_end|>";

// The next character of a template's text, with its escapes if it is inside a quoted literal.
std::optional<char> take_character(std::string_view& text, char quote) {
  const char c = text.front();
  text.remove_prefix(1);
  if (quote == '\0') {
    return c == '{' ? std::nullopt : std::optional(c);  // the template's program begins
  }
  if (c == quote) {
    return std::nullopt;
  }
  if (c != '\\' || text.empty()) {
    return c;
  }
  const char escaped = text.front();
  text.remove_prefix(1);
  return escaped == 'n' ? '\n' : escaped == 't' ? '\t' : escaped;
}

// The message at the front of `text`, which follows kBegin. Nothing if it is put together from
// more than one literal.
std::optional<std::string> message_at(std::string_view text, char quote) {
  if (text.empty() || take_character(text, quote) != '\n') {
    return std::nullopt;
  }
  std::string message;
  while (!text.empty()) {
    if (text.starts_with(kEnd)) {
      return message;
    }
    const auto character = take_character(text, quote);
    if (!character) {
      return std::nullopt;
    }
    message += *character;
  }
  return std::nullopt;
}

}  // namespace

std::string default_system_message(std::string_view chat_template) {
  for (std::size_t at = chat_template.find(kBegin); at != std::string_view::npos;
       at = chat_template.find(kBegin, at + kBegin.size())) {
    const char before = at == 0 ? '\0' : chat_template[at - 1];
    const char quote = before == '\'' || before == '"' ? before : '\0';
    const auto message = message_at(chat_template.substr(at + kBegin.size()), quote);
    if (message && !message->empty()) {
      return *message;
    }
  }
  return {};
}

}  // namespace karez
