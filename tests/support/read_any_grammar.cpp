#include "support/read_any_grammar.h"

#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "model/llama_sampler.h"
#include "model/tokenizer.h"
#include "support/random_model.h"
#include "support/temporary_file.h"

namespace karez::test {
namespace {

constexpr int kAnswerTokens = 24;

const Tokenizer& tokenizer() {
  static const std::unique_ptr<Tokenizer> loaded = [] {
    const TemporaryFile file("grammar_vocabulary.gguf");
    random_model(RandomModelSpec()).write(file.path());
    auto made = Tokenizer::load(file.path(), "");
    KAREZ_CHECK(made.has_value(), made ? "" : made.error().message());
    return std::move(*made);
  }();
  return *loaded;
}

}  // namespace

bool read_any_grammar(std::string_view bytes) {
  SamplingParams params;
  params.temperature = 0;
  params.grammar = bytes;
  if (params.grammar.empty()) {
    return false;
  }
  auto sampler = make_llama_sampler(tokenizer(), params, /*context_tokens=*/0);
  if (!sampler) {
    KAREZ_CHECK(sampler.error().code() == StatusCode::kInvalidArgument, "the client is at fault");
    KAREZ_CHECK(!sampler.error().message().empty(), "it is told why");
    return false;
  }
  std::vector<float> logits(static_cast<std::size_t>(tokenizer().vocab_size()));
  for (int i = 0; i < kAnswerTokens; ++i) {
    for (std::size_t token = 0; token < logits.size(); ++token) {
      logits[token] = static_cast<float>((token * 37 + static_cast<std::size_t>(i) * 11) % 101);
    }
    const auto token = (*sampler)->sample(logits);
    if (!token || tokenizer().is_end_of_generation(*token)) {
      break;  // the grammar may lead nowhere
    }
  }
  return true;
}

}  // namespace karez::test
