// What Scheduler and engine tell each other about one step.
//
// Thread: values. Views are valid until the next Scheduler::update() or update_failed().
#pragma once

#include <span>
#include <vector>

#include "base/token.h"
#include "kv/compression_schedule.h"
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
  // Guesses of what follows the last token, to be verified in the same step: row i + 1 of these is
  // right if the token sampled after row i is. Empty unless wants_logits, and with num_choices 1.
  std::span<const TokenId> drafts;
  // The last of the drafts are hints: computed for what they would read, and never verified.
  int num_hints = 0;
  // Of the last token and of each draft that is verified: the sequence's next ones are sampled.
  bool wants_logits = false;
  int num_prompt_tokens = 0;
  int cached_tokens = 0;            // of the prompt
  CompressionSchedule compression;  // its rows' queries are kept if it is on
  // Set by Scheduler::lose(): the step's results for it are void, update() passes it over.
  bool is_lost = false;

  int num_rows() const { return static_cast<int>(tokens.size() + drafts.size()); }
  int num_verified_drafts() const { return static_cast<int>(drafts.size()) - num_hints; }
};

// A sequence that generates, and could be given drafts for the next step.
struct DraftCandidate {
  ScheduleKey key;
  RequestId request = 0;
  int choice = 0;
  std::span<const TokenId> tokens;  // the prompt and what was generated
  SequenceId kv;                    // of all of them but the last
};

// A sequence whose windows are compressed as they age.
struct CompressionCandidate {
  ScheduleKey key;
  RequestId request = 0;
  int choice = 0;
  int num_choices = 1;
  SequenceId kv;
  int num_tokens = 0;  // whose KV is written
  CompressionSchedule schedule;
  int window = 0;  // the next one
  Publication publication;
  // Whether the sequence waits for it.
  bool is_due() const { return num_tokens >= publication.position; }
};

// Choices that were ended by themselves: the fast tier is full of this one sequence, or its KV was
// lost too often.
struct EndedSequence {
  RequestId request = 0;
  int choice = 0;
  int num_choices = 1;
};

struct StepPlan {
  std::vector<PlannedSequence> sequences;
  int num_tokens = 0;  // of all sequences together, drafts included
  std::vector<EndedSequence> ended;
};

// One choice's next token, and whether the choice ends with it (its KV is then given up).
struct SampledToken {
  TokenId token = 0;
  bool finished = false;
};

struct StepOutput {
  // In the order of the plan: for each sequence with wants_logits, a token for each choice; for one
  // with drafts, those that were accepted and one more, or as far as one that is `finished`.
  std::vector<SampledToken> samples;
  // [plan.sequences], how many of these tokens stand for drafts that were accepted. Empty: none.
  std::vector<int> accepted_drafts;
};

}  // namespace karez
