#include "engine/request_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

namespace karez {

Expected<void> check_request(const Request& request, const RequestLimits& limits) {
  const auto is_token = [&](TokenId token) { return token >= 0 && token < limits.vocab_size; };
  const std::string vocabulary =
      fmt::format("the model's vocabulary is 0 to {}", limits.vocab_size - 1);
  if (request.prompt.empty()) {
    return fail_field("prompt", "prompt has no tokens, allowed are 1 and more");
  }
  if (request.prompt.size() >= static_cast<std::size_t>(std::max(limits.context_tokens, 0))) {
    return fail_field(
        "prompt",
        fmt::format("prompt has {} tokens and the context is {} tokens for prompt and answer "
                    "together, allowed are prompts of at most {} tokens",
                    request.prompt.size(), limits.context_tokens,
                    std::max(limits.context_tokens - 1, 0)));
  }
  for (const TokenId token : request.prompt) {
    if (!is_token(token)) {
      return fail_field("prompt", fmt::format("prompt has token {}, {}", token, vocabulary));
    }
  }
  if (request.num_choices < 1 || request.num_choices > limits.max_num_seqs) {
    return fail_field("n", fmt::format("n is {}, allowed are 1 to {} (max-num-seqs)",
                                       request.num_choices, limits.max_num_seqs));
  }
  if (request.max_tokens == 0 || request.max_tokens < -1) {
    return fail_field("max_tokens",
                      fmt::format("max_tokens is {}, allowed are 1 and more, and -1 (no limit)",
                                  request.max_tokens));
  }
  if (request.min_tokens < 0 ||
      (request.max_tokens > 0 && request.min_tokens > request.max_tokens)) {
    return fail_field("min_tokens", fmt::format("min_tokens is {}, allowed are 0 to max_tokens",
                                                request.min_tokens));
  }
  if (request.num_logprobs < -1 || request.num_logprobs > kMaxLogprobs) {
    return fail_field("top_logprobs", fmt::format("top_logprobs is {}, allowed are 0 to {}",
                                                  request.num_logprobs, kMaxLogprobs));
  }
  for (const TokenId token : request.stop_token_ids) {
    if (!is_token(token)) {
      return fail_field("stop_token_ids",
                        fmt::format("stop_token_ids has token {}, {}", token, vocabulary));
    }
  }
  for (const auto& [token, bias] : request.logit_bias) {
    if (!is_token(token)) {
      return fail_field("logit_bias",
                        fmt::format("logit_bias has token {}, {}", token, vocabulary));
    }
    const bool forbids = std::isinf(bias) && bias < 0;
    if (!forbids && !(std::abs(bias) <= 100.0F)) {
      return fail_field(fmt::format("logit_bias.{}", token),
                        fmt::format("logit_bias of token {} is {}, allowed are -100 to 100 and "
                                    "-infinity",
                                    token, bias));
    }
  }
  return request.sampling.validate();
}

int max_answer_tokens(const Request& request, const RequestLimits& limits) {
  const int room = limits.context_tokens - static_cast<int>(request.prompt.size());
  return request.max_tokens < 0 ? room : std::min(request.max_tokens, room);
}

}  // namespace karez
