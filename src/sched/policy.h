// Who comes first and who gets how many tokens: the scheduler's decisions as pure functions.
//
// Thread: pure functions and values.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

#include "sched/scheduler_options.h"

namespace karez {

// The place of a sequence in the order of service: the lowest is served first and preempted last.
struct ScheduleKey {
  std::int64_t priority = 0;  // 0 for all under kFcfs
  std::uint64_t arrival = 0;
  int choice = 0;

  friend auto operator<=>(const ScheduleKey&, const ScheduleKey&) = default;
};

ScheduleKey schedule_key(SchedulingPolicy policy, int priority, std::uint64_t arrival, int choice);

// A division of one step's token budget.
struct TokenShares {
  std::vector<int> tokens;  // [sequences], 0: not in this step
  std::vector<int> drafts;  // [sequences], rows beside them
  int prefill_left = 0;     // tokens left for prompts of sequences that may start
};

// remaining_tokens: for each running sequence in the order of service, how many of its tokens are
// not computed yet, >= 1. One token is a decode (or the end of a prompt, which is as cheap).
//
// - The first sequence gets at least one token in every step, whatever the others need.
// - Decodes come next, so that running streams do not wait for prompts.
// - Drafts get half of what is left at most, so that prompts do not wait for guesses.
// - Prompts share the rest, in order; max_prefill_tokens_beside_decodes of it at most if anything
//   decodes in this step.
// drafts: for each sequence, the draft rows that it could use; only decodes get any. May be empty.
TokenShares divide_tokens(std::span<const int> remaining_tokens, std::span<const int> drafts,
                          const SchedulerOptions& options);

}  // namespace karez
