// Whether a request can be run at all, and how long its answers may get.
//
// Thread: pure functions.
#pragma once

#include "base/status.h"
#include "sched/request.h"

namespace karez {

struct RequestLimits {
  int vocab_size = 0;
  int context_tokens = 0;  // prompt and answer together
  int max_num_seqs = 0;
};

inline constexpr int kMaxLogprobs = 20;  // as OpenAI's API

// Fails: kInvalidArgument with the field as in the API (Status::field() too), its value and the
// allowed range.
Expected<void> check_request(const Request& request, const RequestLimits& limits);

// Tokens that one answer may have: max_tokens, cut to the room that the context leaves.
// Requires: the request is checked.
int max_answer_tokens(const Request& request, const RequestLimits& limits);

}  // namespace karez
