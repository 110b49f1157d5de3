#include "engine/vocabulary.h"

#include <vector>

#include "model/llama_sampler.h"
#include "model/tokenizer.h"

namespace karez {
namespace {

class ModelVocabulary final : public Vocabulary {
 public:
  ModelVocabulary(const Tokenizer& tokenizer, int context_tokens)
      : tokenizer_(tokenizer), context_tokens_(context_tokens) {
    for (TokenId token = 0; token < tokenizer.vocab_size(); ++token) {
      if (tokenizer.is_end_of_generation(token)) {
        end_tokens_.push_back(token);
      }
    }
  }

  int size() const override { return tokenizer_.vocab_size(); }
  std::string piece(TokenId token) const override {
    return tokenizer_.piece(token, /*render_special=*/false);
  }
  std::span<const TokenId> end_tokens() const override { return end_tokens_; }
  Expected<std::unique_ptr<Sampler>> make_sampler(const SamplingParams& params) const override {
    return make_llama_sampler(tokenizer_, params, context_tokens_);
  }

 private:
  const Tokenizer& tokenizer_;
  int context_tokens_;
  std::vector<TokenId> end_tokens_;
};

}  // namespace

std::unique_ptr<Vocabulary> model_vocabulary(const Tokenizer& tokenizer, int context_tokens) {
  return std::make_unique<ModelVocabulary>(tokenizer, context_tokens);
}

}  // namespace karez
