#include "model/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <string>
#include <utility>

#include "model/default_system_message.h"
#include "model/gguf_file.h"
#include "model/llama_log.h"
#include "model/tokenizer_impl.h"
#include "model/tokenizer_metadata.h"
#include "model/word_splitter.h"
#include "sampling/utf8.h"

namespace karez {
namespace {

bool looks_like_a_mark(std::string_view text) {
  return text.size() >= 3 && ((text.front() == '<' && text.back() == '>') ||
                              (text.front() == '[' && text.back() == ']'));
}

void collect_special_tokens(Tokenizer::Impl& impl) {
  const int size = llama_vocab_n_tokens(impl.vocab);
  for (TokenId id = 0; id < size; ++id) {
    const std::string_view text = llama_vocab_get_text(impl.vocab, id);
    impl.max_piece_bytes = std::max(impl.max_piece_bytes, text.size());
    const int attributes = llama_vocab_get_attr(impl.vocab, id);
    const auto has = [&](int attribute) { return (attributes & attribute) != 0; };
    if (text.empty()) {
      continue;
    }
    SpecialToken token{id, std::string(text), has(LLAMA_TOKEN_ATTR_UNKNOWN),
                       has(LLAMA_TOKEN_ATTR_LSTRIP), has(LLAMA_TOKEN_ATTR_RSTRIP)};
    if (has(LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_UNKNOWN)) {
      impl.control_tokens.push_back(std::move(token));
    } else if (has(LLAMA_TOKEN_ATTR_USER_DEFINED) && looks_like_a_mark(text) &&
               impl.chat_template.find(text) != std::string::npos) {
      impl.template_marks.push_back(std::move(token));
    }
  }
  for (auto* tokens : {&impl.control_tokens, &impl.template_marks}) {
    std::ranges::stable_sort(*tokens, std::ranges::greater{},
                             [](const SpecialToken& token) { return token.text.size(); });
  }
}

// What libllama's own loader and tokenizer would answer with an abort.
std::string missing_in_vocabulary(const llama_vocab* vocab) {
  if (llama_vocab_type(vocab) == LLAMA_VOCAB_TYPE_NONE || llama_vocab_n_tokens(vocab) <= 0) {
    return "the file has no vocabulary (tokenizer.ggml.model)";
  }
  if (llama_vocab_get_add_bos(vocab) && llama_vocab_bos(vocab) == LLAMA_TOKEN_NULL) {
    return "tokenizer.ggml.add_bos_token is true, but there is no tokenizer.ggml.bos_token_id";
  }
  if (llama_vocab_get_add_eos(vocab) && llama_vocab_eos(vocab) == LLAMA_TOKEN_NULL) {
    return "tokenizer.ggml.add_eos_token is true, but there is no tokenizer.ggml.eos_token_id";
  }
  return {};
}

}  // namespace

Expected<std::vector<TokenId>> Tokenizer::Impl::tokenize_raw(std::string_view text,
                                                             bool add_special,
                                                             bool parse_special) const {
  // Room for the special tokens and for a space that some vocabularies put in front.
  constexpr std::size_t kSlack = 8;
  if (text.size() > std::numeric_limits<std::int32_t>::max() - kSlack) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("a text of {} bytes is too long, allowed are {}", text.size(),
                            std::numeric_limits<std::int32_t>::max() - kSlack));
  }
  if (const auto run = find_long_run(text, splitter)) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("the text has {} {} in a row from byte {}, allowed are {}: the "
                            "tokenizer of this model cannot cut longer runs into words",
                            run->characters, run->what, run->begin, run->allowed));
  }
  const auto length = static_cast<std::int32_t>(text.size());
  try {
    // Rarely more than one token for two bytes; if so, the negated count says how many.
    std::vector<TokenId> tokens(text.size() / 2 + kSlack);
    std::int32_t count =
        llama_tokenize(vocab, text.data(), length, tokens.data(),
                       static_cast<std::int32_t>(tokens.size()), add_special, parse_special);
    if (count < 0 && count != std::numeric_limits<std::int32_t>::min()) {
      tokens.resize(static_cast<std::size_t>(-count));
      count = llama_tokenize(vocab, text.data(), length, tokens.data(),
                             static_cast<std::int32_t>(tokens.size()), add_special, parse_special);
    }
    if (count < 0) {
      return fail(StatusCode::kInternal,
                  fmt::format("{}: libllama could not tokenise a text of {} bytes: {}", path,
                              text.size(), take_llama_errors()));
    }
    tokens.resize(static_cast<std::size_t>(count));
    return tokens;
  } catch (const std::exception& error) {
    return fail(StatusCode::kInternal,
                fmt::format("{}: libllama could not tokenise a text of {} bytes: {}", path,
                            text.size(), error.what()));
  }
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

Expected<std::unique_ptr<Tokenizer>> Tokenizer::load(const std::string& path,
                                                     const std::string& chat_template) {
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  {
    // libllama asserts on much that it reads; it gets only files that have passed our checks.
    auto file = GgufFile::open(path);
    if (!file) {
      return fail(std::move(file.error()));
    }
    if (auto checked = check_tokenizer_metadata(*file); !checked) {
      return fail(std::move(checked.error()));
    }
    impl->splitter = word_splitter_of(file->get_string("tokenizer.ggml.model").value_or(""),
                                      file->get_string("tokenizer.ggml.pre").value_or(""));
  }
  silence_llama_log();
  try {
    llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    impl->model.reset(llama_model_load_from_file(path.c_str(), params));
  } catch (const std::exception& error) {
    return fail(StatusCode::kCorruption,
                fmt::format("{}: libllama cannot read the vocabulary: {}", path, error.what()));
  }
  if (impl->model == nullptr) {
    return fail(StatusCode::kCorruption, fmt::format("{}: libllama cannot read the vocabulary: {}",
                                                     path, take_llama_errors()));
  }
  impl->vocab = llama_model_get_vocab(impl->model.get());
  if (std::string missing = missing_in_vocabulary(impl->vocab); !missing.empty()) {
    return fail(StatusCode::kCorruption, fmt::format("{}: {}", path, missing));
  }
  if (!chat_template.empty()) {
    impl->chat_template = chat_template;
  } else if (const char* text = llama_model_chat_template(impl->model.get(), nullptr)) {
    impl->chat_template = text;
  }
  impl->default_system_message = default_system_message(impl->chat_template);
  collect_special_tokens(*impl);
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(impl)));
}

Expected<std::vector<TokenId>> Tokenizer::tokenize(std::string_view text, bool add_special,
                                                   bool parse_special) const {
  if (const auto offset = first_invalid_utf8(text)) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("the text is not UTF-8 at byte {}", *offset));
  }
  auto tokens = impl_->tokenize_raw(text, add_special, parse_special);
  const TokenId begin = llama_vocab_bos(impl_->vocab);
  if (tokens && add_special && llama_vocab_get_add_bos(impl_->vocab) && tokens->size() >= 2 &&
      (*tokens)[0] == begin && (*tokens)[1] == begin) {
    tokens->erase(tokens->begin());
  }
  return tokens;
}

std::string Tokenizer::piece(TokenId token, bool render_special) const {
  if (token < 0 || token >= vocab_size()) {
    return {};
  }
  std::string text(32, '\0');
  std::int32_t length = llama_token_to_piece(
      impl_->vocab, token, text.data(), static_cast<std::int32_t>(text.size()), 0, render_special);
  if (length < 0) {
    text.resize(static_cast<std::size_t>(-length));
    length = llama_token_to_piece(impl_->vocab, token, text.data(),
                                  static_cast<std::int32_t>(text.size()), 0, render_special);
  }
  text.resize(static_cast<std::size_t>(std::max(length, 0)));
  return text;
}

bool Tokenizer::is_end_of_generation(TokenId token) const {
  return llama_vocab_is_eog(impl_->vocab, token);
}

int Tokenizer::vocab_size() const { return llama_vocab_n_tokens(impl_->vocab); }

std::size_t Tokenizer::max_piece_bytes() const { return impl_->max_piece_bytes; }

bool Tokenizer::has_chat_template() const { return !impl_->chat_template.empty(); }

}  // namespace karez
