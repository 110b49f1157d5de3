#include "model/llama_sampler.h"

#include <fmt/format.h>
#include <llama.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <exception>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "model/llama_log.h"
#include "model/tokenizer.h"
#include "model/tokenizer_impl.h"
#include "sampling/grammar_cost.h"

namespace karez {
namespace {

constexpr float kImpossible = -std::numeric_limits<float>::infinity();

// libllama keeps every way in which an ambiguous grammar can go on, and they can double with each
// character. Looking at one token costs time for each of them; a grammar within
// check_grammar_cost()'s limits begins with less than a hundredth of this.
constexpr double kMaxGrammarSeconds = 0.02;

// Below, the quotient logit / temperature overflows.
constexpr float kLeastTemperature = 1e-6F;

// Of this thread, so that a busy machine is no reason to end an answer.
double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

struct SamplerDeleter {
  void operator()(llama_sampler* sampler) const { llama_sampler_free(sampler); }
};
using SamplerPtr = std::unique_ptr<llama_sampler, SamplerDeleter>;

// -infinity is a forbidden token; NaN and +infinity come from a broken model or file.
Expected<void> check_logits(std::span<const float> logits) {
  bool any_possible = false;
  bool all_sane = true;
  for (const float logit : logits) {
    any_possible |= logit > kImpossible;
    all_sane &= logit < std::numeric_limits<float>::infinity();  // false for NaN
  }
  if (!all_sane) {
    const auto bad = std::ranges::find_if(
        logits, [](float logit) { return std::isnan(logit) || (logit > 0 && std::isinf(logit)); });
    return fail(StatusCode::kInternal,
                fmt::format("the model's logit of token {} is {}, allowed are finite numbers",
                            bad - logits.begin(), *bad));
  }
  if (!any_possible) {
    return fail(StatusCode::kInternal, "the model allows no token: all logits are -inf");
  }
  return {};
}

class LlamaSampler final : public Sampler {
 public:
  LlamaSampler(SamplerPtr chain, SamplerPtr grammar, std::vector<llama_token> suppressed,
               bool plain_greedy)
      : chain_(std::move(chain)),
        grammar_(std::move(grammar)),
        suppressed_(std::move(suppressed)),
        plain_greedy_(plain_greedy) {}

  Expected<std::int32_t> sample(std::span<const float> logits) override {
    if (auto checked = check_logits(logits); !checked) {
      return fail(std::move(checked.error()));
    }
    if (plain_greedy_) {
      return static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin());
    }
    try {
      return sample_with_chain(logits);
    } catch (const std::exception& error) {
      return fail(StatusCode::kInternal,
                  fmt::format("libllama's sampler failed: {}", error.what()));
    }
  }

  void accept(std::int32_t token) override { llama_sampler_accept(chain_.get(), token); }

 private:
  Expected<std::int32_t> sample_with_chain(std::span<const float> logits) {
    std::optional<std::int32_t> token = draw(logits, /*under_grammar=*/false);
    if (!token) {
      return fail(StatusCode::kInternal,
                  "no token is possible: the vocabulary suppresses all that the model allows");
    }
    const double start = grammar_ != nullptr ? cpu_seconds() : 0;
    const bool allowed = grammar_ == nullptr || grammar_allows(*token);
    if (grammar_ != nullptr && cpu_seconds() - start > kMaxGrammarSeconds) {
      return fail(StatusCode::kInvalidArgument,
                  "the grammar is too ambiguous: there are too many ways in which it can go on");
    }
    if (!allowed) {
      token = draw(logits, /*under_grammar=*/true);
      // Checked again: the grammar aborts the process when it is fed what it forbids.
      if (!token || !grammar_allows(*token)) {
        return fail(StatusCode::kInternal, "the grammar allows no token of this vocabulary here");
      }
    }
    if (grammar_ != nullptr) {
      llama_sampler_accept(grammar_.get(), *token);
    }
    llama_sampler_accept(chain_.get(), *token);
    return *token;
  }

  // None if every token is impossible: the chain would pick one of them.
  std::optional<std::int32_t> draw(std::span<const float> logits, bool under_grammar) {
    candidates_.resize(logits.size());
    for (std::size_t i = 0; i < logits.size(); ++i) {
      candidates_[i] = {static_cast<llama_token>(i), logits[i], 0.0F};
    }
    for (const llama_token token : suppressed_) {
      // A model file may name any number.
      if (token >= 0 && static_cast<std::size_t>(token) < candidates_.size()) {
        candidates_[static_cast<std::size_t>(token)].logit = kImpossible;
      }
    }
    llama_token_data_array array{candidates_.data(), candidates_.size(), -1, false};
    if (under_grammar) {
      llama_sampler_apply(grammar_.get(), &array);
    }
    if (std::ranges::none_of(candidates_, [](const llama_token_data& candidate) {
          return candidate.logit > kImpossible;
        })) {
      return std::nullopt;
    }
    llama_sampler_apply(chain_.get(), &array);
    KAREZ_CHECK(array.selected >= 0 && array.selected < static_cast<std::int64_t>(array.size),
                "the sampler chain ends with a sampler that selects");
    return array.data[array.selected].id;
  }

  bool grammar_allows(std::int32_t token) {
    llama_token_data candidate{token, 1.0F, 0.0F};
    llama_token_data_array array{&candidate, 1, -1, false};
    llama_sampler_apply(grammar_.get(), &array);
    return candidate.logit > kImpossible;
  }

  SamplerPtr chain_;
  SamplerPtr grammar_;  // may be null
  std::vector<llama_token> suppressed_;
  bool plain_greedy_;  // nothing changes the order of the logits: the chain is not needed
  std::vector<llama_token_data> candidates_;
};

}  // namespace

Expected<std::unique_ptr<Sampler>> make_llama_sampler(const Tokenizer& tokenizer,
                                                      const SamplingParams& params,
                                                      int context_tokens) {
  if (auto valid = params.validate(); !valid) {
    return fail(std::move(valid.error()));
  }
  silence_llama_log();
  const llama_vocab* vocab = tokenizer.impl().vocab;
  SamplerPtr grammar;
  if (!params.grammar.empty()) {
    if (auto affordable = check_grammar_cost(params.grammar); !affordable) {
      return fail(std::move(affordable.error()));
    }
    try {
      grammar.reset(llama_sampler_init_grammar(vocab, params.grammar.c_str(), "root"));
    } catch (const std::exception&) {
      // Same answer as for nullptr.
    }
    if (grammar == nullptr) {
      return fail(StatusCode::kInvalidArgument,
                  "the grammar is not valid GBNF with a rule named root");
    }
  }
  // No history is longer than the context, and libllama takes memory for all of it at once.
  const int last_n =
      params.repeat_last_n < 0 ? context_tokens : std::min(params.repeat_last_n, context_tokens);
  const bool penalises =
      last_n > 0 && (params.repeat_penalty != 1.0F || params.presence_penalty != 0.0F ||
                     params.frequency_penalty != 0.0F);
  const bool greedy = params.temperature < kLeastTemperature;

  int num_suppressed = 0;
  const llama_token* suppressed = llama_vocab_get_suppress_tokens(vocab, &num_suppressed);
  SamplerPtr chain(llama_sampler_chain_init(llama_sampler_chain_default_params()));
  const auto add = [&](llama_sampler* sampler) { llama_sampler_chain_add(chain.get(), sampler); };
  if (penalises) {
    add(llama_sampler_init_penalties(llama_vocab_n_tokens(vocab), last_n, params.repeat_penalty,
                                     params.frequency_penalty, params.presence_penalty));
  }
  if (greedy) {
    add(llama_sampler_init_greedy());
  } else {
    constexpr std::size_t kMinKeep = 1;
    add(llama_sampler_init_top_k(params.top_k));
    add(llama_sampler_init_typical(params.typical_p, kMinKeep));
    add(llama_sampler_init_top_p(params.top_p, kMinKeep));
    add(llama_sampler_init_min_p(params.min_p, kMinKeep));
    add(llama_sampler_init_temp(params.temperature));
    add(llama_sampler_init_dist(params.seed));
  }
  const bool plain_greedy = greedy && !penalises && grammar == nullptr && num_suppressed == 0;
  return std::make_unique<LlamaSampler>(
      std::move(chain), std::move(grammar),
      std::vector<llama_token>(suppressed, suppressed + num_suppressed), plain_greedy);
}

}  // namespace karez
