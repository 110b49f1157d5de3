// Planning a step: running sequences take room first, then waiting ones start.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "sched/scheduler.h"

namespace karez {

StepPlan Scheduler::schedule() {
  KAREZ_CHECK(!plan_is_open_, "schedule() follows update()");
  plan_is_open_ = true;
  StepPlan plan;
  int prefill_left = 0;
  plan_running(plan, prefill_left);
  for (auto it = waiting_.begin(); it != waiting_.end() && prefill_left > 0;) {
    const auto candidate = it++;
    if (!waits_for_prefix(candidate->first, candidate->second) &&
        !plan_waiting(plan, candidate, prefill_left)) {
      break;
    }
  }
  return plan;
}

// On return prefill_left is 0 if anyone lacked slots: then nobody new may start.
void Scheduler::plan_running(StepPlan& plan, int& prefill_left) {
  std::vector<int> remaining;
  remaining.reserve(running_.size());
  for (const auto& [key, sequence] : running_) {
    remaining.push_back(sequence.num_remaining_tokens());
  }
  const TokenShares shares = divide_tokens(remaining, options_);
  prefill_left = shares.prefill_left;
  const std::int64_t preemptions_before = counters_.preemptions;
  std::size_t index = 0;
  // make_room() may take away sequences behind `it`, never those before.
  for (auto it = running_.begin(); it != running_.end(); ++index) {
    const auto current = it;
    const int share = shares.tokens[index];
    const int granted = share == 0 ? 0 : make_room(current, share);
    ++it;
    if (granted > 0) {
      add_to_plan(plan, current->first, current->second, granted);
    } else if (share > 0 && current == running_.begin()) {
      end(plan, current);  // alone, and the fast tier is full of it
    }
    if (granted < share || counters_.preemptions > preemptions_before) {
      prefill_left = 0;
    }
  }
}

int Scheduler::make_room(Sequences::iterator sequence, int num_tokens) {
  while (num_tokens > 0 && !kv_.extend(sequence->second.kv, num_tokens)) {
    if (std::next(sequence) != running_.end()) {
      preempt_last();
    } else {
      num_tokens /= 2;  // the last one takes what is left
    }
  }
  return num_tokens;
}

void Scheduler::preempt_last() {
  const auto victim = std::prev(running_.end());
  close(victim->second);
  waiting_.insert(running_.extract(victim));
  ++counters_.preemptions;
}

bool Scheduler::plan_waiting(StepPlan& plan, Sequences::iterator it, int& prefill_left) {
  Sequence& sequence = it->second;
  if (num_running() + sequence.num_choices > options_.max_num_seqs) {
    return false;
  }
  open(sequence);
  if (!running_.empty() && !has_room_for(sequence)) {
    close(sequence);  // with it goes what was found: it may be gone at the next try
    return false;
  }
  const int found_tokens = sequence.num_computed_tokens;
  const auto started = running_.insert(waiting_.extract(it)).position;
  // Nobody is preempted for it: others may be behind it in the order of service.
  int num_tokens = std::min(sequence.num_remaining_tokens(), prefill_left);
  while (num_tokens > 0 && !kv_.extend(sequence.kv, num_tokens)) {
    num_tokens /= 2;
  }
  if (num_tokens == 0) {
    if (running_.size() == 1) {
      end(plan, started);
    } else {
      close(sequence);
      waiting_.insert(running_.extract(started));
    }
    return false;
  }
  const bool has_generated = static_cast<int>(sequence.tokens.size()) > sequence.num_prompt_tokens;
  if (sequence.cached_tokens < 0) {
    sequence.cached_tokens = found_tokens;
    if (sequence.use_prefix_cache) {
      counters_.prefix_queries_tokens += sequence.num_prompt_tokens;
      counters_.prefix_hits_tokens += found_tokens;
    }
  } else if (!has_generated) {
    // Preempted within its prompt. What it finds now it may have computed itself before.
    sequence.cached_tokens = std::min(sequence.cached_tokens, found_tokens);
  }
  add_to_plan(plan, started->first, sequence, num_tokens);
  prefill_left -= num_tokens;
  return true;
}

void Scheduler::add_to_plan(StepPlan& plan, const ScheduleKey& key, const Sequence& sequence,
                            int num_tokens) const {
  PlannedSequence planned;
  planned.key = key;
  planned.request = sequence.request;
  planned.choice = sequence.choice;
  planned.num_choices = sequence.num_choices;
  planned.kv = sequence.kv;
  planned.first_position = sequence.num_computed_tokens;
  planned.tokens = std::span(sequence.tokens)
                       .subspan(static_cast<std::size_t>(sequence.num_computed_tokens),
                                static_cast<std::size_t>(num_tokens));
  planned.wants_logits = num_tokens == sequence.num_remaining_tokens();
  planned.num_prompt_tokens = sequence.num_prompt_tokens;
  planned.cached_tokens = sequence.cached_tokens;
  plan.num_tokens += num_tokens;
  plan.sequences.push_back(planned);
}

void Scheduler::end(StepPlan& plan, Sequences::iterator it) {
  const Sequence& sequence = it->second;
  plan.ended.push_back({sequence.request, sequence.choice, sequence.num_choices});
  close(it->second);
  running_.erase(it);
}

bool Scheduler::waits_for_prefix(const ScheduleKey& key, const Sequence& sequence) const {
  if (!sequence.use_prefix_cache) {
    return false;
  }
  for (const auto& [other_key, other] : running_) {
    if (other_key > key) {
      break;  // waiting for one behind it would turn the order around
    }
    // One that decodes has published its prompt already.
    if (other.num_remaining_tokens() <= 1 || !other.use_prefix_cache ||
        other.cache_salt != sequence.cache_salt) {
      continue;
    }
    const std::size_t limit = std::min(other.tokens.size(), sequence.tokens.size() - 1);
    const auto differ =
        std::ranges::mismatch(std::span(other.tokens).first(limit), sequence.tokens);
    const auto common = static_cast<std::size_t>(differ.in2 - sequence.tokens.begin());
    if (common / kBlockSize > static_cast<std::size_t>(other.num_computed_tokens / kBlockSize)) {
      return true;
    }
  }
  return false;
}

bool Scheduler::has_room_for(const Sequence& sequence) const {
  std::int64_t needed = slots_to_compute_rest(sequence);
  for (const auto& [key, other] : running_) {
    needed += slots_to_compute_rest(other);
  }
  const std::int64_t block_slots = kv_.spec().slots_for_sequence(kBlockSize, kBlockSize);
  needed += block_slots * (num_running() + sequence.num_choices);
  return needed <= kv_.slots_available();
}

// At most so many more slots than it holds. Windows release while it goes on, which one extend()
// for all tokens does not see; what it holds already the other figure does not see.
std::int64_t Scheduler::slots_to_compute_rest(const Sequence& sequence) const {
  const int total = static_cast<int>(sequence.tokens.size());
  const int rest = total - kv_.num_tokens(sequence.kv);  // room for this step is taken already
  if (rest == 0) {
    return 0;
  }
  const std::int64_t alone = kv_.spec().slots_for_sequence(total, options_.max_num_batched_tokens);
  return std::min(alone, kv_.slots_needed(sequence.kv, rest));
}

}  // namespace karez
