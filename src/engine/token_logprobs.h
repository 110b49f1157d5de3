// Natural logarithms of token probabilities: the log-softmax of a model's raw logits, before
// biases, penalties and temperature.
//
// Thread: a pure function.
#pragma once

#include <span>
#include <vector>

#include "base/token.h"

namespace karez {

struct TokenProbability {
  TokenId token = 0;
  float logprob = 0;
};

// The chosen token first, then the num_alternatives most likely ones in descending order (fewer if
// the vocabulary is smaller); of equal ones the lower id first. A token without any probability
// has kLowestLogprob, which JSON can write.
// Requires: chosen is a token of the vocabulary. Cost: two passes over the logits.
inline constexpr float kLowestLogprob = -9999.0F;
std::vector<TokenProbability> token_logprobs(std::span<const float> logits, TokenId chosen,
                                             int num_alternatives);

}  // namespace karez
