// Tokenizer::tokenize_chat().
//
// The template is rendered with a placeholder for each content, so that template and content can be
// told apart in the result. Then the text is cut where the *template* writes control tokens, and
// what lies between two of them, contents included, is tokenised as a whole with control tokens
// left as text. So an ordinary conversation gives the very tokens that libllama gives for the
// rendered text: there is no seam at which words could be cut differently.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <exception>
#include <iterator>
#include <utility>

#include "model/tokenizer.h"
#include "model/tokenizer_impl.h"
#include "sampling/utf8.h"

namespace karez {
namespace {

constexpr std::array<std::string_view, 3> kRoles = {"system", "user", "assistant"};

bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }

std::string_view trim_left(std::string_view text) {
  while (!text.empty() && is_space(text.front())) {
    text.remove_prefix(1);
  }
  return text;
}

std::string_view trim_right(std::string_view text) {
  while (!text.empty() && is_space(text.back())) {
    text.remove_suffix(1);
  }
  return text;
}

Expected<void> check_messages(std::span<const ChatMessage> messages) {
  if (messages.empty()) {
    return fail(StatusCode::kInvalidArgument, "a conversation needs at least one message");
  }
  for (std::size_t i = 0; i < messages.size(); ++i) {
    // The role is part of the template's text, where control tokens count.
    if (std::ranges::find(kRoles, messages[i].role) == kRoles.end()) {
      return fail(StatusCode::kInvalidArgument,
                  fmt::format("message {} has the role '{}', allowed are {}", i, messages[i].role,
                              fmt::join(kRoles, ", ")));
    }
    if (const auto offset = first_invalid_utf8(messages[i].content)) {
      return fail(StatusCode::kInvalidArgument,
                  fmt::format("the content of message {} is not UTF-8 at byte {}", i, *offset));
    }
  }
  return {};
}

// A stretch of the rendered conversation.
struct Segment {
  std::string text;
  bool is_content;
};

// \v around the number is white space, so a template that trims contents removes it, and no
// template writes it of its own accord.
std::string placeholder_core(std::size_t i) { return fmt::format("\x01{}\x02", i); }

std::vector<std::string_view> known_templates() {
  const std::int32_t count = llama_chat_builtin_templates(nullptr, 0);
  std::vector<const char*> names(static_cast<std::size_t>(std::max(count, 0)));
  llama_chat_builtin_templates(names.data(), names.size());
  return {names.begin(), names.end()};
}

// Messages name no file: clients of the server read them.
Expected<std::string> render(const Tokenizer::Impl& impl,
                             const std::vector<llama_chat_message>& chat,
                             bool add_generation_prompt) {
  try {
    std::string text(4096, '\0');
    for (int attempt = 0; attempt < 2; ++attempt) {
      const std::int32_t length = llama_chat_apply_template(
          impl.chat_template.c_str(), chat.data(), chat.size(), add_generation_prompt, text.data(),
          static_cast<std::int32_t>(text.size()));
      if (length < 0) {
        break;
      }
      const bool fits = static_cast<std::size_t>(length) <= text.size();
      text.resize(static_cast<std::size_t>(length));
      if (fits) {
        return text;
      }
    }
  } catch (const std::exception&) {
    // Falls through to the same answer: libllama cannot render this template.
  }
  return fail(StatusCode::kUnimplemented,
              fmt::format("the chat template is of no known family, known are {}",
                          fmt::join(known_templates(), ", ")));
}

// Cuts the rendered text at the placeholders and puts the contents in, trimmed where the template
// trims. A content that the template leaves out is left out.
std::vector<Segment> split_at_placeholders(std::string_view rendered,
                                           std::span<const ChatMessage> messages) {
  std::vector<Segment> segments;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string core = placeholder_core(i);
    const std::size_t at = rendered.find(core);
    if (at == std::string_view::npos) {
      continue;
    }
    std::string_view before = rendered.substr(0, at);
    rendered.remove_prefix(at + core.size());
    std::string_view content = messages[i].content;
    if (before.ends_with('\v')) {
      before.remove_suffix(1);
    } else {
      content = trim_left(content);
    }
    if (rendered.starts_with('\v')) {
      rendered.remove_prefix(1);
    } else {
      content = trim_right(content);
    }
    segments.push_back({std::string(before), false});
    segments.push_back({std::string(content), true});
  }
  segments.push_back({std::string(rendered), false});
  return segments;
}

// Collects the text between two control tokens of the template and tokenises it.
class ChatTokens {
 public:
  explicit ChatTokens(const Tokenizer::Impl& impl) : impl_(impl) {}

  Expected<void> add(const Segment& segment) {
    if (segment.is_content) {
      contents_.push_back({text_.size(), text_.size() + segment.text.size()});
      text_ += segment.text;
      return {};
    }
    std::string_view rest = segment.text;
    while (!rest.empty()) {
      const auto token = std::ranges::find_if(
          impl_.control_tokens, [&](const SpecialToken& t) { return rest.starts_with(t.text); });
      if (token == impl_.control_tokens.end()) {
        text_ += rest.front();
        rest.remove_prefix(1);
        continue;
      }
      if (auto flushed = flush(token->strips_left); !flushed) {
        return flushed;
      }
      tokens_.push_back(token->id);
      strip_next_ = token->strips_right;
      rest.remove_prefix(token->text.size());
    }
    return {};
  }

  Expected<std::vector<TokenId>> finish() {
    if (auto flushed = flush(false); !flushed) {
      return fail(std::move(flushed.error()));
    }
    const TokenId begin = llama_vocab_bos(impl_.vocab);
    if (llama_vocab_get_add_bos(impl_.vocab) && (tokens_.empty() || tokens_.front() != begin)) {
      tokens_.insert(tokens_.begin(), begin);
    }
    return std::move(tokens_);
  }

 private:
  struct Range {
    std::size_t begin;
    std::size_t end;
  };

  Expected<void> flush(bool strip_right) {
    std::string_view text = text_;
    if (strip_right) {
      text = trim_right(text);
    }
    std::size_t skipped = 0;
    if (std::exchange(strip_next_, false)) {
      skipped = text.size() - trim_left(text).size();
    }
    std::vector<std::size_t> cuts;
    find_cuts(text, impl_.template_marks, cuts);
    auto tokens = tokenize_in_parts(text, skipped, cuts);
    if (!tokens) {
      return fail(std::move(tokens.error()));
    }
    if (const auto built = control_tokens_in(*tokens); !built.empty()) {
      // Some vocabularies build a control token from ordinary merges.
      find_cuts(text, built, cuts);
      tokens = tokenize_in_parts(text, skipped, cuts);
      if (!tokens) {
        return fail(std::move(tokens.error()));
      }
    }
    if (!control_tokens_in(*tokens).empty()) {
      return fail(
          StatusCode::kInvalidArgument,
          "a message contains a text that this vocabulary can only read as a control token");
    }
    std::ranges::copy(*tokens, std::back_inserter(tokens_));
    text_.clear();
    contents_.clear();
    return {};
  }

  std::vector<SpecialToken> control_tokens_in(std::span<const TokenId> tokens) const {
    std::vector<SpecialToken> found;
    const bool any = std::ranges::any_of(tokens, [&](TokenId token) {
      return (llama_vocab_get_attr(impl_.vocab, token) & LLAMA_TOKEN_ATTR_CONTROL) != 0;
    });
    if (any) {
      std::ranges::copy_if(
          impl_.control_tokens, std::back_inserter(found), [&](const SpecialToken& control) {
            return !control.is_unknown && std::ranges::find(tokens, control.id) != tokens.end();
          });
    }
    return found;
  }

  // Places inside marks that contents write: tokenised apart, their halves are plain text.
  void find_cuts(std::string_view text, const std::vector<SpecialToken>& marks,
                 std::vector<std::size_t>& cuts) const {
    for (const Range& content : contents_) {
      const std::size_t end = std::min(content.end, text.size());
      for (std::size_t at = content.begin; at < end; ++at) {
        for (const SpecialToken& mark : marks) {
          if (mark.text.size() > 1 && text.substr(at, end - at).starts_with(mark.text)) {
            cuts.push_back(at + 1);
          }
        }
      }
    }
    std::ranges::sort(cuts);
  }

  Expected<std::vector<TokenId>> tokenize_in_parts(std::string_view text, std::size_t begin,
                                                   std::vector<std::size_t> cuts) const {
    std::vector<TokenId> all;
    cuts.push_back(text.size());
    for (const std::size_t cut : cuts) {
      if (cut <= begin) {
        continue;
      }
      auto tokens = impl_.tokenize_raw(text.substr(begin, cut - begin), false, false);
      if (!tokens) {
        return tokens;
      }
      std::ranges::copy(*tokens, std::back_inserter(all));
      begin = cut;
    }
    return all;
  }

  const Tokenizer::Impl& impl_;
  std::vector<TokenId> tokens_;
  std::string text_;             // since the last control token of the template
  std::vector<Range> contents_;  // of text_, in bytes
  bool strip_next_ = false;
};

}  // namespace

Expected<std::vector<TokenId>> Tokenizer::tokenize_chat(std::span<const ChatMessage> messages,
                                                        bool add_generation_prompt) const {
  if (!has_chat_template()) {
    return fail(StatusCode::kUnimplemented,
                fmt::format("the model has no chat template, known are {}",
                            fmt::join(known_templates(), ", ")));
  }
  if (auto checked = check_messages(messages); !checked) {
    return fail(std::move(checked.error()));
  }
  std::vector<ChatMessage> completed;
  if (!impl_->default_system_message.empty() && messages.front().role != "system") {
    completed.push_back({"system", impl_->default_system_message});
    completed.insert(completed.end(), messages.begin(), messages.end());
    messages = completed;
  }
  std::vector<std::string> placeholders;
  placeholders.reserve(messages.size());
  for (std::size_t i = 0; i < messages.size(); ++i) {
    // Templates treat an empty content in their own way, and white space holds no control token.
    const bool blank = trim_left(messages[i].content).empty();
    placeholders.push_back(blank ? messages[i].content : "\v" + placeholder_core(i) + "\v");
  }
  std::vector<llama_chat_message> chat;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    chat.push_back({messages[i].role.c_str(), placeholders[i].c_str()});
  }
  auto rendered = render(*impl_, chat, add_generation_prompt);
  if (!rendered) {
    return fail(std::move(rendered.error()));
  }
  ChatTokens tokens(*impl_);
  for (const Segment& segment : split_at_placeholders(*rendered, messages)) {
    if (auto added = tokens.add(segment); !added) {
      return fail(std::move(added.error()));
    }
  }
  return tokens.finish();
}

}  // namespace karez
