#include "model/tokenizer_metadata.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "model/gguf_contents.h"
#include "model/gguf_file.h"

namespace karez {
namespace {

constexpr std::string_view kModel = "tokenizer.ggml.model";
constexpr std::string_view kTokens = "tokenizer.ggml.tokens";
constexpr std::string_view kScores = "tokenizer.ggml.scores";
constexpr std::string_view kTokenType = "tokenizer.ggml.token_type";
constexpr std::string_view kMerges = "tokenizer.ggml.merges";
constexpr std::string_view kSuppressTokens = "tokenizer.ggml.suppress_tokens";
constexpr std::string_view kBosId = "tokenizer.ggml.bos_token_id";
constexpr std::string_view kEosId = "tokenizer.ggml.eos_token_id";
constexpr std::string_view kAddBos = "tokenizer.ggml.add_bos_token";
constexpr std::string_view kAddEos = "tokenizer.ggml.add_eos_token";

constexpr std::array kStringKeys = {std::string_view("tokenizer.ggml.pre"),
                                    std::string_view("tokenizer.chat_template")};
constexpr std::array kBoolKeys = {kAddBos, kAddEos,
                                  std::string_view("tokenizer.ggml.add_sep_token"),
                                  std::string_view("tokenizer.ggml.add_space_prefix"),
                                  std::string_view("tokenizer.ggml.remove_extra_whitespaces")};
constexpr std::array kIdKeys = {kBosId, kEosId, std::string_view("tokenizer.ggml.eot_token_id"),
                                std::string_view("tokenizer.ggml.eom_token_id"),
                                std::string_view("tokenizer.ggml.unknown_token_id")};

constexpr std::uint64_t kMaxTokens = 1 << 24;
constexpr std::int64_t kByteTokenType = 6;

class Checker {
 public:
  explicit Checker(const GgufFile& file) : file_(file) {}

  Expected<void> check() {
    return check_model()
        .and_then([&] { return check_scalars(); })
        .and_then([&] { return read_texts(); })
        .and_then([&] { return check_texts_differ(); })
        .and_then([&] { return check_arrays(); })
        .and_then([&] { return check_byte_tokens(); })
        .and_then([&] { return check_ids(); });
  }

 private:
  template <typename... Args>
  tl::unexpected<Status> corrupt(std::string_view key, fmt::format_string<Args...> format,
                                 Args&&... args) const {
    return fail(StatusCode::kCorruption,
                fmt::format("{}: key \"{}\" {}", file_.path(), key,
                            fmt::format(format, std::forward<Args>(args)...)));
  }

  // "Not found" would mean the file itself.
  static tl::unexpected<Status> as_corruption(const Status& status) {
    return fail(StatusCode::kCorruption, status.message());
  }

  Expected<void> check_model() {
    const auto model = file_.get_string(kModel);
    if (!model) {
      return as_corruption(model.error());
    }
    if (*model != "llama" && *model != "gpt2") {
      return fail(StatusCode::kUnimplemented,
                  fmt::format("{}: key \"{}\" is \"{}\", supported are gpt2 and llama",
                              file_.path(), kModel, printable(*model)));
    }
    is_sentencepiece_ = *model == "llama";
    return {};
  }

  Expected<void> check_scalars() const {
    for (const std::string_view key : kStringKeys) {
      if (file_.has(key) && !file_.get_string(key)) {
        return as_corruption(file_.get_string(key).error());
      }
    }
    for (const std::string_view key : kBoolKeys) {
      if (file_.has(key) && !file_.get_bool(key)) {
        return as_corruption(file_.get_bool(key).error());
      }
    }
    return {};
  }

  // Texts as libllama will see them: cut at the first zero byte, empty ones renamed.
  Expected<void> read_texts() {
    const auto tokens = file_.array_info(kTokens);
    if (!tokens) {
      return as_corruption(tokens.error());
    }
    if (tokens->length < 1 || tokens->length > kMaxTokens) {
      return corrupt(kTokens, "has {} elements, allowed are 1 to {}", tokens->length, kMaxTokens);
    }
    auto texts = file_.get_string_array(kTokens);
    if (!texts) {
      return as_corruption(texts.error());
    }
    texts_ = std::move(*texts);
    for (std::string_view& text : texts_) {
      text = text.substr(0, text.find('\0'));
    }
    order_.resize(texts_.size());
    std::iota(order_.begin(), order_.end(), 0U);
    std::ranges::sort(order_, {}, [&](std::uint32_t i) { return texts_[i]; });
    return {};
  }

  Expected<void> check_texts_differ() const {
    for (std::size_t i = 1; i < order_.size(); ++i) {
      const std::string_view text = texts_[order_[i]];
      if (!text.empty() && text == texts_[order_[i - 1]]) {
        return corrupt(kTokens, "has the text \"{}\" twice (tokens {} and {}), allowed is once",
                       printable(text), std::min(order_[i - 1], order_[i]),
                       std::max(order_[i - 1], order_[i]));
      }
    }
    // libllama calls an empty token i "[EMPTY_i]".
    for (std::size_t i = 0; i < order_.size() && texts_[order_[i]].empty(); ++i) {
      const std::string replacement = fmt::format("[EMPTY_{}]", order_[i]);
      if (has_text(replacement)) {
        return corrupt(kTokens, "has the empty text at {} and the text \"{}\", allowed is one",
                       order_[i], replacement);
      }
    }
    return {};
  }

  bool has_text(std::string_view text) const {
    const auto by_text = [&](std::uint32_t i) { return texts_[i]; };
    return std::ranges::binary_search(order_, text, {}, by_text);
  }

  Expected<void> check_array(std::string_view key, GgufType type, bool one_for_each_token) const {
    const auto info = file_.array_info(key);
    if (!info) {
      return as_corruption(info.error());
    }
    if (info->element_type != type) {
      return corrupt(key, "is an array of {}, allowed is an array of {}",
                     to_string(info->element_type), to_string(type));
    }
    if (one_for_each_token && info->length != texts_.size()) {
      return corrupt(key, "has {} elements, allowed is one for each of the {} tokens", info->length,
                     texts_.size());
    }
    return {};
  }

  Expected<void> check_arrays() const {
    Expected<void> result;
    if (file_.has(kScores)) {
      result = check_array(kScores, GgufType::kF32, true);
    }
    if (result && file_.has(kTokenType)) {
      result = check_array(kTokenType, GgufType::kI32, true);
    }
    if (result && file_.has(kSuppressTokens)) {
      result = check_array(kSuppressTokens, GgufType::kI32, false);
    }
    // Byte-level BPE does not work without merges.
    if (result && (!is_sentencepiece_ || file_.has(kMerges))) {
      result = check_array(kMerges, GgufType::kString, false);
    }
    return result;
  }

  // SentencePiece falls back to one token for each byte of a text that it does not know.
  Expected<void> check_byte_tokens() const {
    if (file_.has(kTokenType)) {
      const auto types = file_.get_int_array(kTokenType, texts_.size());
      if (!types) {
        return as_corruption(types.error());
      }
      for (std::size_t i = 0; i < types->size(); ++i) {
        if ((*types)[i] == kByteTokenType && !is_byte_text(texts_[i])) {
          return corrupt(kTokenType,
                         "says that token {} is a byte, but its text is \"{}\", allowed "
                         "are <0x00> to <0xFF>",
                         i, printable(texts_[i]));
        }
      }
    }
    if (!is_sentencepiece_) {
      return {};
    }
    for (int byte = 0; byte < 256; ++byte) {
      const std::string name = fmt::format("<0x{:02X}>", byte);
      const std::string itself(1, static_cast<char>(byte));
      if (!has_text(name) && !(byte != 0 && has_text(itself))) {
        return corrupt(kTokens, "lacks the byte token {}, allowed are vocabularies with all 256",
                       name);
      }
    }
    return {};
  }

  static bool is_byte_text(std::string_view text) {
    return text.size() == 6 && text.starts_with("<0x") && text.ends_with('>') &&
           std::isxdigit(static_cast<unsigned char>(text[3])) != 0 &&
           std::isxdigit(static_cast<unsigned char>(text[4])) != 0;
  }

  Expected<void> check_ids() const {
    for (const std::string_view key : kIdKeys) {
      if (!file_.has(key)) {
        continue;
      }
      if (file_.type(key) != GgufType::kU32) {
        return corrupt(key, "has type {}, allowed is u32", to_string(file_.type(key)));
      }
      const auto id = file_.get_int(key);
      if (!id) {
        return as_corruption(id.error());
      }
      if (static_cast<std::uint64_t>(*id) >= texts_.size()) {
        return corrupt(key, "is {}, allowed are 0 to {}", *id, texts_.size() - 1);
      }
    }
    // Whether a begin token is added without add_bos_token depends on tokenizer.ggml.pre; an end
    // token is added only on demand.
    const bool adds_bos = !file_.has(kAddBos) || file_.get_bool(kAddBos).value_or(true);
    const bool adds_eos = file_.get_bool(kAddEos).value_or(false);
    const std::size_t default_bos = is_sentencepiece_ ? 1 : 11;
    const std::size_t default_eos = is_sentencepiece_ ? 2 : 11;
    if (adds_bos && !file_.has(kBosId) && default_bos >= texts_.size()) {
      return corrupt(kBosId, "is missing and its default {} is outside the {} tokens", default_bos,
                     texts_.size());
    }
    if (adds_eos && !file_.has(kEosId) && default_eos >= texts_.size()) {
      return corrupt(kEosId, "is missing and its default {} is outside the {} tokens", default_eos,
                     texts_.size());
    }
    return {};
  }

  const GgufFile& file_;
  bool is_sentencepiece_ = false;
  std::vector<std::string_view> texts_;
  std::vector<std::uint32_t> order_;  // indices into texts_, ascending by text
};

}  // namespace

Expected<void> check_tokenizer_metadata(const GgufFile& file) { return Checker(file).check(); }

}  // namespace karez
