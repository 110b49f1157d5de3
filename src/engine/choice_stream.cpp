#include "engine/choice_stream.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "engine/token_logprobs.h"

namespace karez {

ChoiceStream::ChoiceStream(std::shared_ptr<const Request> request, int choice, int max_tokens,
                           const Vocabulary& vocabulary, std::unique_ptr<Sampler> sampler)
    : request_(std::move(request)),
      choice_(choice),
      max_tokens_(max_tokens),
      vocabulary_(vocabulary),
      sampler_(std::move(sampler)),
      stops_(request_->sampling.stop),
      end_tokens_(request_->stop_token_ids) {
  if (!request_->ignore_eos) {
    const auto ends = vocabulary.end_tokens();
    end_tokens_.insert(end_tokens_.end(), ends.begin(), ends.end());
  }
}

bool ChoiceStream::is_end(TokenId token) const {
  return std::ranges::find(end_tokens_, token) != end_tokens_.end();
}

std::span<const float> ChoiceStream::adjust(std::span<const float> logits, bool may_end,
                                            std::vector<float>& scratch) const {
  if (request_->logit_bias.empty() && may_end) {
    return logits;
  }
  scratch.assign(logits.begin(), logits.end());
  for (const auto& [token, bias] : request_->logit_bias) {
    scratch[static_cast<std::size_t>(token)] += bias;
  }
  if (!may_end) {
    for (const TokenId token : end_tokens_) {
      scratch[static_cast<std::size_t>(token)] = -std::numeric_limits<float>::infinity();
    }
  }
  return scratch;
}

GeneratedToken ChoiceStream::describe(TokenId token, std::span<const float> logits) const {
  GeneratedToken generated;
  generated.chosen = {token, 0, vocabulary_.piece(token)};
  if (request_->num_logprobs < 0) {
    return generated;
  }
  const auto probabilities = token_logprobs(logits, token, request_->num_logprobs);
  generated.chosen.logprob = probabilities.front().logprob;
  for (const TokenProbability& likely : std::span(probabilities).subspan(1)) {
    generated.alternatives.push_back(
        {likely.token, likely.logprob, vocabulary_.piece(likely.token)});
  }
  return generated;
}

GenerationEvent ChoiceStream::take_event(std::string text) {
  GenerationEvent event;
  event.choice = choice_;
  event.text = std::move(text);
  event.tokens = std::exchange(waiting_, {});
  event.generated_tokens = generated_tokens_;
  return event;
}

Expected<TokenId> ChoiceStream::sample(std::span<const float> logits, std::vector<float>& scratch) {
  const bool may_end = generated_tokens_ >= request_->min_tokens;
  auto sampled = sampler_->sample(adjust(logits, may_end, scratch));
  if (sampled || may_end || request_->sampling.grammar.empty()) {
    return sampled;
  }
  // The text of a grammar may be complete before min_tokens; then nothing but an end is left.
  const auto last = sampler_->sample(adjust(logits, /*may_end=*/true, scratch));
  return last && is_end(*last) ? last : sampled;
}

ChoiceStream::Step ChoiceStream::next(std::span<const float> logits, std::vector<float>& scratch) {
  KAREZ_CHECK(!finished_, "the answer goes on");
  const Expected<TokenId> sampled = sample(logits, scratch);
  if (!sampled) {
    return {{0, true}, end(FinishReason::kError, sampled.error())};
  }
  const TokenId token = *sampled;
  ++generated_tokens_;
  if (is_end(token)) {
    return {{token, true}, end(FinishReason::kStop)};
  }
  waiting_.push_back(describe(token, logits));
  std::string text = characters_.push(waiting_.back().chosen.bytes);
  if (generated_tokens_ >= request_->min_tokens) {
    text = stops_.push(text);
  }
  if (stops_.stopped() || generated_tokens_ >= max_tokens_) {
    const bool stopped = stops_.stopped();
    GenerationEvent event = end(stopped ? FinishReason::kStop : FinishReason::kLength);
    event.text.insert(0, text);
    if (stops_.stopped()) {
      // Also when only the end of the last character completed it.
      event.finished = FinishReason::kStop;
      event.stop_match = stops_.match();
    }
    return {{token, true}, std::move(event)};
  }
  if (text.empty()) {
    return {{token, false}, std::nullopt};
  }
  return {{token, false}, take_event(std::move(text))};
}

GenerationEvent ChoiceStream::end(FinishReason reason, std::optional<Status> error) {
  KAREZ_CHECK(!finished_, "an answer ends once");
  finished_ = true;
  std::string text = stops_.push(characters_.finish());
  text += stops_.finish();
  GenerationEvent event = take_event(std::move(text));
  event.finished = reason;
  event.error = std::move(error);
  return event;
}

}  // namespace karez
