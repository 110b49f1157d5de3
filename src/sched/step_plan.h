// What Scheduler and engine tell each other about one step.
//
// Thread: values. Views are valid until the next Scheduler::update() or update_failed().
#pragma once

#include <span>
#include <vector>

#include "base/token.h"
#include "kv/kv_types.h"
#include "sched/policy.h"
#include "sched/request.h"

namespace karez {

// A range of tokens of one sequence to compute. KVCacheManager has room for them.
struct PlannedSequence {
  ScheduleKey key;
  RequestId request = 0;
  int choice = 0;
  // The choices that get a token from this step's logits: [choice, choice + num_choices).
  int num_choices = 1;
  SequenceId kv;
  int first_position = 0;
  std::span<const TokenId> tokens;
  bool wants_logits = false;  // of the last token: the sequence's next one is sampled
  int num_prompt_tokens = 0;
  int cached_tokens = 0;  // of the prompt
  // Set by Scheduler::lose(): the step's results for it are void, update() passes it over.
  bool is_lost = false;
};

// Choices that the scheduler ended by itself: the fast tier is full of this one sequence.
struct EndedSequence {
  RequestId request = 0;
  int choice = 0;
  int num_choices = 1;
};

struct StepPlan {
  std::vector<PlannedSequence> sequences;
  int num_tokens = 0;  // of all sequences together
  std::vector<EndedSequence> ended;
};

// One choice's next token, and whether the choice ends with it (its KV is then given up).
struct SampledToken {
  TokenId token = 0;
  bool finished = false;
};

// In the order of the plan: for each sequence with wants_logits, num_choices tokens.
struct StepOutput {
  std::vector<SampledToken> samples;
};

}  // namespace karez
