// Adding, cancelling and updating sequences. The planning of a step is in scheduler_plan.cpp.
#include "sched/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace karez {

Scheduler::Scheduler(KVCacheManager& kv, PrefixCache* prefix_cache, const SchedulerOptions& options,
                     SequenceListener* listener)
    : kv_(kv),
      prefix_cache_(prefix_cache),
      listener_(listener),
      options_(options),
      slots_total_(kv.slots_for_sequences()) {
  KAREZ_CHECK(options.validate().has_value(), "the scheduler's options are valid");
  if (kv.residency() != nullptr) {
    home_blocks_ = kv.residency()->stats().home_blocks_total;
  }
}

Scheduler::~Scheduler() {
  for (Sequences* sequences : {&running_, &waiting_}) {
    for (auto& [key, sequence] : *sequences) {
      close(sequence);
    }
  }
}

bool Scheduler::can_ever_fit(int num_tokens) const {
  // In steps of one token it takes the fewest slots, and most_that_stream() goes down to that.
  const std::int64_t all = kv_.spec().slots_for_sequence(num_tokens, 1);
  return all <= slots_total_ ||
         (all <= home_blocks_ && slots_to_read_one_layer(num_tokens) <= slots_total_);
}

void Scheduler::add(const Request& request, const CompressionSchedule& compression) {
  Sequence sequence;
  sequence.tokens = request.prompt;
  sequence.use_prefix_cache = request.use_prefix_cache && prefix_cache_ != nullptr;
  sequence.compression = compression;
  enqueue(request, std::move(sequence));
}

void Scheduler::add_computed(const Request& request, const CompressionSchedule& compression,
                             SequenceId kv, const Origin& origin,
                             std::span<const TokenId> generated) {
  const int num_tokens = kv_.num_tokens(kv);
  Sequence sequence;
  sequence.tokens = request.prompt;
  sequence.tokens.insert(sequence.tokens.end(), generated.begin(), generated.end());
  KAREZ_CHECK(num_tokens < static_cast<int>(sequence.tokens.size()), "a token is left to compute");
  KAREZ_CHECK(generated.empty() || request.num_choices == 1,
              "choices differ in what they generate");
  KAREZ_CHECK(!compression.is_on() || num_tokens <= compression.first_position,
              "compression needs the queries of what it compresses");
  sequence.use_prefix_cache = origin.num_remote_tokens == 0 && origin.is_exact &&
                              request.use_prefix_cache && prefix_cache_ != nullptr;
  sequence.compression = compression;
  sequence.kv = kv;
  sequence.num_computed_tokens = num_tokens;
  sequence.num_remote_tokens = origin.num_remote_tokens;
  sequence.cached_tokens = num_tokens;
  enqueue(request, std::move(sequence));
}

bool Scheduler::has_room_for(const Request& request, int num_remote_tokens) const {
  if (running_.empty() && waiting_.empty()) {
    return true;
  }
  // Nobody overtakes one that waits for slots with its KV.
  if (std::ranges::any_of(waiting_, [](const auto& entry) { return !entry.second.kv.is_none(); })) {
    return false;
  }
  Sequence sequence;
  sequence.num_choices = request.num_choices;
  sequence.tokens = request.prompt;
  sequence.num_computed_tokens = static_cast<int>(request.prompt.size()) - 1;
  sequence.num_remote_tokens = num_remote_tokens;
  return has_room_for(sequence);
}

void Scheduler::enqueue(const Request& request, Sequence sequence) {
  KAREZ_CHECK(!plan_is_open_, "requests come between steps");
  KAREZ_CHECK(!request.prompt.empty(), "a prompt is not empty");
  KAREZ_CHECK(request.num_choices >= 1 && request.num_choices <= options_.max_num_seqs,
              "all choices of a request run at once");
  sequence.request = request.id;
  sequence.priority = request.priority;
  sequence.num_choices = request.num_choices;
  sequence.cache_salt = request.cache_salt;
  sequence.num_prompt_tokens = static_cast<int>(request.prompt.size());
  waiting_.emplace(schedule_key(options_.policy, request.priority, ++num_arrivals_, 0),
                   std::move(sequence));
}

void Scheduler::cancel(RequestId request) {
  KAREZ_CHECK(!plan_is_open_, "requests go between steps");
  for (Sequences* sequences : {&running_, &waiting_}) {
    for (auto it = sequences->begin(); it != sequences->end();) {
      if (it->second.request == request) {
        close(it->second);
        it = sequences->erase(it);
      } else {
        ++it;
      }
    }
  }
}

void Scheduler::update(const StepPlan& plan, const StepOutput& output) {
  KAREZ_CHECK(plan_is_open_, "update() follows schedule()");
  plan_is_open_ = false;
  std::span<const SampledToken> samples = output.samples;
  for (std::size_t i = 0; i < plan.sequences.size(); ++i) {
    const PlannedSequence& planned = plan.sequences[i];
    if (planned.is_lost) {
      continue;
    }
    const auto it = running_.find(planned.key);
    KAREZ_CHECK(it != running_.end(), "the plan is of this scheduler");
    Sequence& sequence = it->second;
    sequence.num_computed_tokens += static_cast<int>(planned.tokens.size());
    if (!planned.drafts.empty()) {
      const auto accepted = static_cast<std::size_t>(output.accepted_drafts[i]);
      KAREZ_CHECK(samples.size() > accepted, "a sample for each accepted draft, and the next");
      take_accepted(sequence, samples.first(accepted));
      samples = samples.subspan(accepted);
    }
    if (sequence.use_prefix_cache) {
      const auto computed = static_cast<std::size_t>(
          std::min(sequence.num_computed_tokens,
                   std::min(num_dense_tokens(sequence), sequence.num_uncompressed_tokens())));
      prefix_cache_->publish(sequence.kv, sequence.cache_salt,
                             std::span(sequence.tokens).first(computed), sequence.chain);
    }
    kv_.write_home(sequence.kv);
    if (planned.wants_logits) {
      const auto count = static_cast<std::size_t>(planned.num_choices);
      KAREZ_CHECK(samples.size() >= count, "a sample for each choice with logits");
      take_samples(it, samples.first(count));
      samples = samples.subspan(count);
    }
  }
  KAREZ_CHECK(samples.empty(), "no sample without logits");
  if (kv_.residency() != nullptr) {
    kv_.residency()->advance();
  }
}

bool Scheduler::lose(PlannedSequence& planned) {
  KAREZ_CHECK(plan_is_open_, "lose() comes before update()");
  const auto it = running_.find(planned.key);
  KAREZ_CHECK(it != running_.end(), "the plan is of this scheduler");
  planned.is_lost = true;
  return start_again(it);
}

bool Scheduler::start_again(Sequences::iterator it) {
  constexpr int kMaxTimesLost = 3;
  Sequence& sequence = it->second;
  close(sequence);
  // One that goes on in between is worth its computing, however long a poor medium makes it last.
  if (sequence.tokens.size() >= sequence.tokens_when_lost + kBlockSize) {
    sequence.times_lost = 0;
  }
  sequence.tokens_when_lost = sequence.tokens.size();
  if (++sequence.times_lost > kMaxTimesLost) {
    running_.erase(it);
    return false;
  }
  waiting_.insert(running_.extract(it));
  return true;
}

void Scheduler::wait_again(Sequences::iterator it) {
  close(it->second);
  waiting_.insert(running_.extract(it));
}

void Scheduler::take_accepted(Sequence& sequence, std::span<const SampledToken> accepted) {
  for (const SampledToken& sample : accepted) {
    KAREZ_CHECK(!sample.finished, "drafts behind the end of an answer are not accepted");
    sequence.tokens.push_back(sample.token);
  }
  sequence.num_computed_tokens += static_cast<int>(accepted.size());
  sequence.drafts = {};
  const bool is_shorter = kv_.truncate(sequence.kv, sequence.num_computed_tokens);
  KAREZ_CHECK(is_shorter, "a step releases nothing that its own rows read");
}

void Scheduler::take_samples(Sequences::iterator it, std::span<const SampledToken> samples) {
  Sequence& sequence = it->second;
  const int num_tokens = static_cast<int>(sequence.tokens.size());
  for (std::size_t i = 1; i < samples.size(); ++i) {
    if (samples[i].finished) {
      continue;
    }
    const auto fork = kv_.fork(sequence.kv, num_tokens);
    KAREZ_CHECK(fork.has_value(), "a sequence can be forked at its own length");
    Sequence choice = sequence;
    choice.choice = static_cast<int>(i);
    choice.num_choices = 1;
    choice.kv = *fork;
    choice.tokens.push_back(samples[i].token);
    if (listener_ != nullptr) {
      listener_->fork(sequence.kv, *fork);
    }
    ScheduleKey key = it->first;
    key.choice = choice.choice;
    running_.emplace(key, std::move(choice));
  }
  if (samples[0].finished) {
    close(sequence);
    running_.erase(it);
    return;
  }
  sequence.num_choices = 1;
  sequence.tokens.push_back(samples[0].token);
}

std::vector<DraftCandidate> Scheduler::draft_candidates() const {
  std::vector<DraftCandidate> candidates;
  for (const auto& [key, sequence] : running_) {
    if (sequence.num_remaining_tokens() == 1 && sequence.num_choices == 1 &&
        static_cast<int>(sequence.tokens.size()) > sequence.num_prompt_tokens &&
        sequence.num_tokens_before_compression() > 1) {
      candidates.push_back({key, sequence.request, sequence.choice, sequence.tokens, sequence.kv});
    }
  }
  return candidates;
}

void Scheduler::set_drafts(const ScheduleKey& key, Drafts drafts) {
  const auto it = running_.find(key);
  KAREZ_CHECK(!plan_is_open_ && it != running_.end(), "drafts are for running sequences");
  it->second.drafts = std::move(drafts);
}

void Scheduler::update_failed(const StepPlan& plan) {
  KAREZ_CHECK(plan_is_open_, "update_failed() follows schedule()");
  plan_is_open_ = false;
  for (const PlannedSequence& planned : plan.sequences) {
    const auto it = running_.find(planned.key);
    KAREZ_CHECK(it != running_.end(), "the plan is of this scheduler");
    close(it->second);
    running_.erase(it);
  }
}

void Scheduler::open(Sequence& sequence) {
  sequence.chain = PrefixChain{};
  sequence.num_computed_tokens = 0;
  sequence.num_compressed_windows = 0;
  sequence.compression_stopped = false;
  if (sequence.use_prefix_cache) {
    // match() leaves the last token out.
    const std::span<const TokenId> tokens(sequence.tokens);
    const auto findable = static_cast<std::size_t>(
        std::min(sequence.num_findable_tokens(), num_dense_tokens(sequence)));
    const std::size_t end = std::min(tokens.size(), findable + std::size_t{1});
    if (auto match = prefix_cache_->match(sequence.cache_salt, tokens.first(end))) {
      sequence.kv = match->sequence;
      sequence.num_computed_tokens = match->num_tokens;
      sequence.chain = match->chain;
      return;
    }
  }
  sequence.kv = kv_.open();
}

void Scheduler::close(Sequence& sequence) {
  if (!sequence.kv.is_none()) {
    if (listener_ != nullptr) {
      listener_->forget(sequence.kv);
    }
    kv_.close(sequence.kv);
  }
  sequence.kv = SequenceId::none();
  sequence.num_computed_tokens = 0;
  sequence.num_remote_tokens = 0;
  sequence.drafts = {};
}

bool Scheduler::give_back_slots(const Sequence& sequence) {
  return listener_ != nullptr && listener_->give_back_slots(sequence.kv);
}

bool Scheduler::give_back_all_slots() {
  bool has_any = false;
  for (const auto& [key, sequence] : running_) {
    has_any = give_back_slots(sequence) || has_any;
  }
  return has_any;
}

int Scheduler::num_dense_tokens(const Sequence& sequence) const {
  return std::max(sequence.num_prompt_tokens, options_.max_dense_tokens);
}

int Scheduler::num_running() const {
  int count = 0;
  for (const auto& [key, sequence] : running_) {
    count += sequence.num_choices;
  }
  return count;
}

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats = counters_;
  stats.num_running = num_running();
  stats.num_waiting = static_cast<int>(waiting_.size());
  return stats;
}

}  // namespace karez
