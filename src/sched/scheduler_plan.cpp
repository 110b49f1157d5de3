// Planning a step: running sequences take room first, then waiting ones start.
#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "kv/window_blocks.h"
#include "sched/scheduler.h"

namespace karez {

StepPlan Scheduler::schedule() {
  KAREZ_CHECK(!plan_is_open_, "schedule() follows update()");
  plan_is_open_ = true;
  StepPlan plan;
  demote_last_ones();
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
  std::vector<int> drafts;
  remaining.reserve(running_.size());
  for (const auto& [key, sequence] : running_) {
    remaining.push_back(sequence.num_computable_tokens());
    // Rows of drafts stay before the next publication too.
    drafts.push_back(
        std::clamp(sequence.num_tokens_before_compression() - 1, 0, sequence.drafts.size()));
  }
  const TokenShares shares = divide_tokens(remaining, drafts, options_);
  prefill_left = shares.prefill_left;
  // Slots that the sequences at hand and behind it need without drafts.
  std::int64_t slots_needed = 0;
  {
    auto tokens = shares.tokens.begin();
    for (const auto& [key, sequence] : running_) {
      slots_needed += std::max<std::int64_t>(0, kv_.slots_needed(sequence.kv, *tokens++));
    }
  }
  const std::int64_t preemptions_before = counters_.preemptions;
  std::size_t index = 0;
  // make_room() may take away sequences behind `it`, never those before.
  for (auto it = running_.begin(); it != running_.end(); ++index) {
    const auto current = it;
    const int share = shares.tokens[index];
    slots_needed -= std::max<std::int64_t>(0, kv_.slots_needed(current->second.kv, share));
    const bool has_drafts =
        make_room_for_drafts(current->second, shares.drafts[index], slots_needed);
    const int granted = has_drafts || share == 0 ? share : make_room(current, share);
    ++it;
    if (granted > 0) {
      add_to_plan(plan, current->first, current->second, granted);
    } else if (share > 0 && kv_.is_last_block_lost(current->second.kv)) {
      wait_again(current);
    } else if (share > 0 && current == running_.begin() && slots_of_others_ == 0) {
      end(plan, current);  // the fast tier is full of it alone, or of what one of its layers reads
    }
    if (granted < share || counters_.preemptions > preemptions_before) {
      prefill_left = 0;
    }
  }
}

int Scheduler::make_room(Sequences::iterator sequence, int num_tokens) {
  num_tokens = take_what_streams(sequence->second, num_tokens);
  while (num_tokens > 0 && !kv_.extend(sequence->second.kv, num_tokens)) {
    if (kv_.is_last_block_lost(sequence->second.kv)) {
      return 0;  // room does not help
    }
    if (drop_last_demoted()) {
      continue;
    }
    if (std::next(sequence) != running_.end()) {
      preempt_last();
    } else if (!give_back_slots(sequence->second)) {
      num_tokens /= 2;  // the last one takes what is left
    }
  }
  return num_tokens;
}

bool Scheduler::make_room_for_drafts(Sequence& sequence, int num_drafts,
                                     std::int64_t slots_of_others) {
  num_drafts = std::max(0, most_that_stream(sequence, 1 + num_drafts) - 1);
  const bool has_room =
      num_drafts > 0 &&
      kv_.slots_needed(sequence.kv, 1 + num_drafts) + slots_of_others <= kv_.slots_available() &&
      kv_.extend(sequence.kv, 1 + num_drafts);
  sequence.drafts.shorten(has_room ? num_drafts : 0);
  return has_room;
}

void Scheduler::preempt_last() {
  const auto victim = std::prev(running_.end());
  close(victim->second);
  waiting_.insert(running_.extract(victim));
  ++counters_.preemptions;
}

void Scheduler::demote_last_ones() {
  if (home_blocks_ == 0) {
    return;
  }
  while (running_.size() > 1 && !floors_fit_with(nullptr)) {
    const auto victim = std::prev(running_.end());
    victim->second.drafts = {};
    static_cast<void>(give_back_slots(victim->second));
    kv_.demote(victim->second.kv);
    waiting_.insert(running_.extract(victim));
    ++counters_.preemptions;
    ++counters_.demotions;
  }
}

bool Scheduler::drop_last_demoted() {
  for (auto it = waiting_.rbegin(); it != waiting_.rend(); ++it) {
    if (!it->second.kv.is_none()) {
      close(it->second);
      return true;
    }
  }
  return false;
}

bool Scheduler::plan_waiting(StepPlan& plan, Sequences::iterator it, int& prefill_left) {
  Sequence& sequence = it->second;
  if (num_running() + sequence.num_choices > options_.max_num_seqs) {
    return false;
  }
  const bool was_demoted = !sequence.kv.is_none();
  if (!was_demoted) {
    open(sequence);
  }
  if (!running_.empty() && !has_room_for(sequence)) {
    if (!was_demoted) {
      close(sequence);  // with it goes what was found: it may be gone at the next try
    }
    return false;
  }
  const int found_tokens = sequence.num_computed_tokens;
  const auto started = running_.insert(waiting_.extract(it)).position;
  if (sequence.num_computable_tokens() == 0) {
    return true;  // demoted while it waited for compressed(), which comes before the next step
  }
  // Nobody is preempted for it: others may be behind it in the order of service.
  const auto take_room = [&] {
    int num_tokens =
        take_what_streams(sequence, std::min(sequence.num_computable_tokens(), prefill_left));
    while (num_tokens > 0 && !kv_.extend(sequence.kv, num_tokens)) {
      if (kv_.is_last_block_lost(sequence.kv)) {
        return 0;  // room does not help
      }
      if (running_.size() > 1 || !drop_last_demoted()) {
        num_tokens /= 2;
      }
    }
    return num_tokens;
  };
  int num_tokens = take_room();
  if (num_tokens == 0 && was_demoted && slots_of_others_ > 0 &&
      !kv_.is_last_block_lost(sequence.kv)) {
    waiting_.insert(running_.extract(started));  // with its KV
    return false;
  }
  if (num_tokens == 0 && was_demoted && running_.size() == 1) {
    close(sequence);  // its KV at home may be lost
    open(sequence);
    num_tokens = take_room();
  }
  if (num_tokens == 0) {
    if (running_.size() == 1 && slots_of_others_ == 0) {
      end(plan, started);
    } else {
      wait_again(started);
    }
    return false;
  }
  if (was_demoted) {
    add_to_plan(plan, started->first, sequence, num_tokens);
    prefill_left -= num_tokens;
    return true;
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
  planned.drafts = sequence.drafts.tokens;
  planned.num_hints = sequence.drafts.num_hints;
  planned.num_prompt_tokens = sequence.num_prompt_tokens;
  planned.cached_tokens = sequence.cached_tokens;
  if (!sequence.compression_stopped) {
    planned.compression = sequence.compression;
  }
  plan.num_tokens += planned.num_rows();
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
    // What the other one will publish, and this one may take.
    const std::size_t limit =
        std::min({other.tokens.size(), static_cast<std::size_t>(other.num_uncompressed_tokens()),
                  static_cast<std::size_t>(num_dense_tokens(other)), sequence.tokens.size() - 1,
                  static_cast<std::size_t>(sequence.num_findable_tokens()),
                  static_cast<std::size_t>(num_dense_tokens(sequence))});
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
  if (home_blocks_ > 0) {
    return floors_fit_with(&sequence);
  }
  std::int64_t needed = slots_to_compute_rest(sequence);
  for (const auto& [key, other] : running_) {
    needed += slots_to_compute_rest(other);
  }
  const std::int64_t block_slots = kv_.spec().slots_for_sequence(kBlockSize, kBlockSize);
  needed += block_slots * (num_running() + sequence.num_choices);
  return needed <= kv_.slots_available();
}

bool Scheduler::floors_fit_with(const Sequence* another) const {
  const auto whole_slots = [&](const Sequence& sequence) {
    const auto num_tokens = static_cast<std::int64_t>(sequence.tokens.size());
    return kv_.spec().slots_for_sequence(num_tokens - sequence.num_remote_tokens,
                                         options_.max_num_batched_tokens);
  };
  std::int64_t floors = 0;
  std::int64_t wholes = 0;
  std::int64_t rows = 0;  // of a step
  for (const auto& [key, sequence] : running_) {
    floors += floor_slots(sequence);
    wholes += whole_slots(sequence);
    rows += sequence.num_remaining_tokens() + sequence.drafts.size();
  }
  rows += another == nullptr ? 0 : another->num_remaining_tokens();
  rows = std::min<std::int64_t>(rows, options_.max_num_batched_tokens);
  // Blocks that are being written, of this step and of the one before, are in the fast tier too.
  floors += 2 * kv_.spec().slots_for_sequence(rows, rows);
  if (another == nullptr) {
    return floors <= slots_total_;
  }
  for (const auto& [key, sequence] : waiting_) {
    wholes += sequence.kv.is_none() || &sequence == another ? 0 : whole_slots(sequence);
  }
  return floors + floor_slots(*another) <= slots_total_ &&
         wholes + whole_slots(*another) <= home_blocks_;
}

std::int64_t Scheduler::floor_slots(const Sequence& sequence) const {
  const int total = static_cast<int>(sequence.tokens.size());
  int kept = total;
  if (options_.decode_floor_tokens > 0) {
    kept = std::min(total, options_.decode_floor_tokens);
  }
  std::int64_t slots = kv_.spec().slots_for_sequence(kept, options_.max_num_batched_tokens);
  if (sequence.num_remaining_tokens() > 1) {
    slots = std::max(slots, slots_to_read_one_layer(total));
  }
  return slots * sequence.num_choices;
}

// And to write one more block of each layer and head.
std::int64_t Scheduler::slots_to_read_one_layer(int num_tokens) const {
  return kv_.spec().num_kv_heads * num_blocks(num_tokens) +
         kv_.spec().slots_for_sequence(kBlockSize, kBlockSize);
}

int Scheduler::most_that_stream(const Sequence& sequence, int num_rows) const {
  if (home_blocks_ == 0 || num_rows <= 0) {
    return num_rows;
  }
  std::int64_t read = std::numeric_limits<std::int64_t>::max();
  if (options_.decode_read_tokens > 0 && sequence.is_decoding()) {
    // Drafts select for themselves.
    read = std::int64_t{options_.decode_read_tokens} * num_rows;
  }
  const std::int64_t most =
      kv_.most_step_tokens(sequence.kv, read, slots_total_ - slots_of_others_);
  return static_cast<int>(std::min<std::int64_t>(num_rows, most));
}

int Scheduler::take_what_streams(const Sequence& sequence, int num_rows) {
  int most = most_that_stream(sequence, num_rows);
  if (num_rows > 0 && most == 0 && give_back_all_slots()) {
    most = most_that_stream(sequence, num_rows);
  }
  // A prompt can be computed (can_ever_fit()), and so can an answer that is computed again: it was
  // before. If its rows select that was row by row, and many at a time may read too much.
  const bool is_known_to_fit = !sequence.is_decoding() && slots_of_others_ == 0;
  return is_known_to_fit ? std::max(most, std::min(num_rows, 1)) : most;
}

// At most so many more slots than it holds. Windows release while it goes on, which one extend()
// for all tokens does not see; what it holds already the other figure does not see.
std::int64_t Scheduler::slots_to_compute_rest(const Sequence& sequence) const {
  const int total = static_cast<int>(sequence.tokens.size());
  if (sequence.kv.is_none()) {
    return kv_.spec().slots_for_sequence(total, options_.max_num_batched_tokens);
  }
  // Room for this step, and its drafts, is taken already.
  const int rest = total - kv_.num_tokens(sequence.kv);
  if (rest <= 0) {
    return 0;
  }
  const std::int64_t alone = kv_.spec().slots_for_sequence(
      sequence.compression.most_tokens_held(total), options_.max_num_batched_tokens);
  return std::min(alone, kv_.slots_needed(sequence.kv, rest));
}

}  // namespace karez
