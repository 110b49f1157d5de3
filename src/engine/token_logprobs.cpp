#include "engine/token_logprobs.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace karez {

std::vector<TokenProbability> token_logprobs(std::span<const float> logits, TokenId chosen,
                                             int num_alternatives) {
  const float highest = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) {
    sum += std::exp(static_cast<double>(logit - highest));
  }
  const double log_sum = static_cast<double>(highest) + std::log(sum);
  const auto logit_of = [&](TokenId token) { return logits[static_cast<std::size_t>(token)]; };
  const auto probability = [&](TokenId token) {
    const auto logprob = static_cast<float>(static_cast<double>(logit_of(token)) - log_sum);
    return TokenProbability{token, std::max(logprob, kLowestLogprob)};
  };

  std::vector<TokenProbability> result{probability(chosen)};
  const auto count = std::min(static_cast<std::size_t>(num_alternatives), logits.size());
  if (count == 0) {
    return result;
  }
  std::vector<TokenId> best(count);
  const auto likelier = [&](TokenId a, TokenId b) {
    return logit_of(a) != logit_of(b) ? logit_of(a) > logit_of(b) : a < b;
  };
  std::vector<TokenId> all(logits.size());
  std::iota(all.begin(), all.end(), 0);
  std::ranges::partial_sort_copy(all, best, likelier);
  for (const TokenId token : best) {
    result.push_back(probability(token));
  }
  return result;
}

}  // namespace karez
