#include "engine/engine_loop.h"

#include <algorithm>
#include <chrono>
#include <span>

#include "base/check.h"
#include "engine/step_batch.h"

namespace karez {
namespace {

bool is_decode(const PlannedSequence& planned) { return planned.tokens.size() == 1; }

std::int64_t unix_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

Status lost_status() {
  return {StatusCode::kUnavailable,
          "keys and values could not be read back from the tier below the fast one"};
}

}  // namespace

EngineLoop::EngineLoop(ModelRunner& runner, KVCacheManager& kv, const KeyIndex* key_index,
                       BlockLoader* loader, std::unique_ptr<PrefixCache> prefix_cache,
                       std::unique_ptr<Speculation> speculation,
                       std::unique_ptr<WindowCompressor> compressor, const StoredPrefixes& stored,
                       const SchedulerOptions& options, bool dense_rows,
                       std::function<double()> clock)
    : runner_(runner),
      kv_(kv),
      key_index_(key_index),
      loader_(loader),
      dense_rows_(dense_rows),
      prefix_cache_(std::move(prefix_cache)),
      speculation_(std::move(speculation)),
      compressor_(std::move(compressor)),
      store_(prefix_cache_ == nullptr ? nullptr : stored.store),
      options_(options),
      scheduler_(kv, prefix_cache_.get(), options, compressor_.get()),
      clock_(std::move(clock)) {
  KAREZ_CHECK(loader != nullptr || kv.residency() == nullptr, "a home tier needs a loader");
  if (store_ != nullptr) {
    restorer_ = std::make_unique<PrefixRestorer>(kv, *prefix_cache_, *store_, key_index,
                                                 stored.load_limit_seconds, clock_);
    saver_ = std::make_unique<PrefixSaver>(kv, *prefix_cache_, *store_, unix_nanoseconds);
  }
}

void EngineLoop::add(Submission submission) {
  const Request& request = *submission.request;
  // Behind the first window's begin nothing may be found.
  const auto findable_tokens =
      submission.compression.is_on()
          ? static_cast<std::size_t>(submission.compression.first_position) + 1
          : request.prompt.size();
  // A prompt that is compressed needs its own queries, so it is computed here.
  const bool is_prompt_kept =
      !submission.compression.is_on() ||
      submission.compression.first_position >= static_cast<int>(request.prompt.size());
  if (peers_.consumer != nullptr && request.kv_transfer &&
      request.kv_transfer->role == KvTransfer::Role::kConsume && request.prompt.size() > 1 &&
      is_prompt_kept) {
    peers_.consumer->start(submission.request);
  } else if (restorer_ == nullptr || !request.use_prefix_cache ||
             !restorer_->hold(request, findable_tokens)) {
    scheduler_.add(request, submission.compression);
  }
  ActiveRequest active;
  active.num_unfinished = request.num_choices;
  active.submission = std::move(submission);
  active_.emplace(request.id, std::move(active));
}

void EngineLoop::cancel(RequestId id) {
  const auto it = active_.find(id);
  if (it == active_.end()) {
    return;
  }
  if (restorer_ != nullptr) {
    restorer_->cancel(id);
  }
  scheduler_.cancel(id);
  end_choices(id, 0, it->second.submission.request->num_choices, FinishReason::kCancelled,
              std::nullopt);
}

void EngineLoop::cancel_all() {
  std::vector<RequestId> ids;
  for (const auto& [id, active] : active_) {
    ids.push_back(id);
  }
  for (const RequestId id : ids) {
    cancel(id);
  }
}

void EngineLoop::advance_restores() {
  if (restorer_ == nullptr) {
    return;
  }
  // What the next step takes at most: its tokens, and a begun block, copied or new, for each.
  const std::int64_t spare_slots = kv_.spec().slots_for_sequence(options_.max_num_batched_tokens,
                                                                 options_.max_num_batched_tokens) +
                                   kv_.spec().slots_for_sequence(kBlockSize, kBlockSize) *
                                       (2 * scheduler_.stats().num_running + 2);
  restorer_->advance(spare_slots, !scheduler_.has_work());
  for (const RequestId id : restorer_->take_ready()) {
    const Submission& submission = active_.at(id).submission;
    scheduler_.add(*submission.request, submission.compression);
  }
}

void EngineLoop::plan() {
  step_start_seconds_ = clock_();
  scheduler_.set_slots_of_others(slots_of_others());
  if (compressor_ != nullptr) {
    const auto may_recompute = [this](RequestId request) {
      if (is_recomputed_when_lost(request)) {
        return true;
      }
      lost_.push_back(request);
      return false;
    };
    for (const EndedSequence& lost :
         CompressionTurns(*compressor_).run(scheduler_, may_recompute)) {
      end_choices(lost.request, lost.choice, lost.num_choices, FinishReason::kError, lost_status());
    }
    end_lost();
  }
  draft();
  plan_ = scheduler_.schedule();
  waits_for_slots_ = plan_.sequences.empty() && plan_.ended.empty() && slots_of_others() > 0;
  for (const EndedSequence& ended : plan_.ended) {
    end_choices(ended.request, ended.choice, ended.num_choices, FinishReason::kLength,
                std::nullopt);
  }
  note_scheduled(plan_);
}

void EngineLoop::compute() {
  StepPlan plan = std::exchange(plan_, {});
  if (plan.sequences.empty()) {
    scheduler_.update(plan, {});
    return;
  }
  const ForwardBatch batch = make_batch(plan, kv_, key_index_, dense_rows_, compressor_.get());
  const double forward_start = clock_();
  if (loader_ != nullptr) {
    loader_->begin_step(kv_, batch.sequences);
  }
  const auto logits = runner_.forward(batch, kv_);
  std::vector<BlockLoader::SequenceReads> reads;
  if (loader_ != nullptr) {
    reads = loader_->end_step();
  }
  const double forward_seconds = clock_() - forward_start;
  totals_.forward_seconds += forward_seconds;
  if (speculation_ != nullptr && std::ranges::all_of(plan.sequences, is_decode)) {
    speculation_->note_step(plan.num_tokens, forward_seconds);
  }
  if (std::exchange(wants_kv_map_, false)) {
    const PlannedSequence& first = plan.sequences.front();
    kv_map_ = std::make_shared<const KvMap>(make_kv_map(kv_, first.request, first.kv));
  }
  if (logits) {
    note_reads(plan, reads);
    const StepOutput output = sample(plan, *logits);
    scheduler_.update(plan, output);
    end_lost();
  } else {
    for (const PlannedSequence& planned : plan.sequences) {
      end_choices(planned.request, planned.choice, planned.num_choices, FinishReason::kError,
                  logits.error());
    }
    scheduler_.update_failed(plan);
  }
  ++totals_.steps;
  totals_.step_seconds += clock_() - step_start_seconds_;
}

void EngineLoop::draft() {
  if (speculation_ == nullptr) {
    return;
  }
  const std::vector<DraftCandidate> candidates = scheduler_.draft_candidates();
  std::vector<DraftQuery> queries;
  for (const DraftCandidate& candidate : candidates) {
    const ChoiceStream& choice =
        active_.at(candidate.request)
            .submission.choices[static_cast<std::size_t>(candidate.choice)];
    // The last token of an answer is never fed back.
    queries.push_back({{candidate.request, candidate.choice},
                       candidate.tokens,
                       std::max(0, choice.tokens_left() - 1),
                       candidate.kv});
  }
  std::vector<DraftRows> drafts = speculation_->draft(queries);
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (!drafts[i].tokens.empty()) {
      scheduler_.set_drafts(candidates[i].key, {std::move(drafts[i].tokens), drafts[i].num_probes});
    }
  }
}

void EngineLoop::note_reads(StepPlan& plan, std::span<const BlockLoader::SequenceReads> reads) {
  for (std::size_t i = 0; i < reads.size(); ++i) {
    PlannedSequence& planned = plan.sequences[i];
    ActiveRequest& active = active_.at(planned.request);
    active.kv_blocks_read += reads[i].blocks_read;
    active.kv_blocks_loaded += reads[i].blocks_loaded;
    active.kv_missed.add(reads[i].missed);
    totals_.missed.add(reads[i].missed);
    if (!reads[i].is_lost) {
      continue;
    }
    if (!is_recomputed_when_lost(planned.request)) {
      lost_.push_back(planned.request);
    }
    if (!scheduler_.lose(planned)) {
      end_choices(planned.request, planned.choice, planned.num_choices, FinishReason::kError,
                  lost_status());
    }
  }
}

std::int64_t EngineLoop::slots_of_others() const {
  std::int64_t slots = peers_.consumer != nullptr ? peers_.consumer->slots_held() : 0;
  // With a home tier what is restored can be evicted at once.
  if (restorer_ != nullptr && kv_.residency() == nullptr && restorer_->holds_slots()) {
    ++slots;
  }
  return slots;
}

void EngineLoop::note_scheduled(const StepPlan& plan) {
  const double now = clock_();
  for (const PlannedSequence& planned : plan.sequences) {
    ActiveRequest& active = active_.at(planned.request);
    if (!active.scheduled_seconds) {
      active.scheduled_seconds = now;
    }
    active.cached_tokens = planned.cached_tokens;
  }
}

StepOutput EngineLoop::sample(const StepPlan& plan, std::span<const float> logits) {
  StepOutput output;
  output.accepted_drafts.resize(plan.sequences.size());
  if (std::ranges::any_of(plan.sequences,
                          [this](const auto& one) { return one.wants_logits && produces(one); })) {
    kept_logits_.assign(logits.begin(), logits.end());
    logits = kept_logits_;
  }
  const auto vocab_size = static_cast<std::size_t>(runner_.config().vocab_size);
  for (std::size_t i = 0; i < plan.sequences.size(); ++i) {
    const PlannedSequence& planned = plan.sequences[i];
    if (!planned.wants_logits) {
      continue;
    }
    const std::size_t num_values =
        vocab_size * static_cast<std::size_t>(1 + planned.num_verified_drafts());
    KAREZ_CHECK(logits.size() >= num_values, "logits for each output row");
    const std::span<const float> rows = logits.first(num_values);
    logits = logits.subspan(num_values);
    if (planned.is_lost) {
      continue;
    }
    ActiveRequest& active = active_.at(planned.request);
    if (!active.first_token_seconds) {
      active.first_token_seconds = clock_();
      totals_.prompt_tokens += static_cast<std::int64_t>(active.submission.request->prompt.size());
    }
    if (!keep_for_consumer(planned, active, rows.first(vocab_size), output)) {
      continue;
    }
    if (planned.num_choices == 1) {
      output.accepted_drafts[i] = verify(active, planned, rows, output);
    } else {
      for (int choice = planned.choice; choice < planned.choice + planned.num_choices; ++choice) {
        sample_one(active, choice, rows, output);
      }
    }
    if (active.num_unfinished == 0) {
      forget(planned.request);
    }
  }
  return output;
}

bool EngineLoop::sample_one(ActiveRequest& active, int choice, std::span<const float> row,
                            StepOutput& output) {
  ChoiceStream::Step step =
      active.submission.choices[static_cast<std::size_t>(choice)].next(row, scratch_);
  ++totals_.generated_tokens;
  output.samples.push_back(step.sampled);
  if (step.event) {
    keep_event(active, std::move(*step.event));
  }
  return !step.sampled.finished;
}

int EngineLoop::verify(ActiveRequest& active, const PlannedSequence& planned,
                       std::span<const float> rows, StepOutput& output) {
  const auto vocab_size = static_cast<std::size_t>(runner_.config().vocab_size);
  const auto num_drafts = static_cast<std::size_t>(planned.num_verified_drafts());
  const std::size_t first_sample = output.samples.size();
  active.draft_tokens += planned.num_verified_drafts();
  std::size_t accepted = 0;
  while (
      sample_one(active, planned.choice, rows.subspan(accepted * vocab_size, vocab_size), output) &&
      accepted < num_drafts && output.samples.back().token == planned.drafts[accepted]) {
    ++accepted;
    ++active.accepted_draft_tokens;
  }
  if (speculation_ != nullptr) {
    std::vector<TokenId> came;
    for (const SampledToken& sample : std::span(output.samples).subspan(first_sample)) {
      came.push_back(sample.token);
    }
    const DraftSequence sequence{planned.request, planned.choice};
    speculation_->note(sequence, planned.num_verified_drafts(), came);
    if (output.samples.back().finished) {
      speculation_->forget(sequence);
    }
  }
  return static_cast<int>(accepted);
}

void EngineLoop::end_choices(RequestId id, int first_choice, int num_choices, FinishReason reason,
                             const std::optional<Status>& error) {
  ActiveRequest& active = active_.at(id);
  for (int i = first_choice; i < first_choice + num_choices; ++i) {
    ChoiceStream& choice = active.submission.choices[static_cast<std::size_t>(i)];
    if (!choice.finished()) {
      keep_event(active, choice.end(reason, error));
    }
    if (speculation_ != nullptr) {
      speculation_->forget({id, i});
    }
  }
  if (active.num_unfinished == 0) {
    forget(id);
  }
}

void EngineLoop::keep_event(ActiveRequest& active, GenerationEvent event) {
  const double now = clock_();
  event.prompt_tokens = static_cast<int>(active.submission.request->prompt.size());
  event.cached_tokens = active.cached_tokens;
  event.kv_blocks_read = active.kv_blocks_read;
  event.kv_blocks_loaded = active.kv_blocks_loaded;
  event.draft_tokens = active.draft_tokens;
  event.accepted_draft_tokens = active.accepted_draft_tokens;
  event.kv_missed = active.kv_missed;
  const double scheduled = active.scheduled_seconds.value_or(now);
  const double first_token = active.first_token_seconds.value_or(now);
  event.timings.queue_seconds = scheduled - active.submission.submitted_seconds;
  event.timings.prefill_seconds = first_token - scheduled;
  event.timings.decode_seconds = now - first_token;
  if (event.finished) {
    --active.num_unfinished;
    event.kv_transfer = active.kv_transfer;
  }
  events_.emplace_back(active.submission.callback, std::move(event));
}

void EngineLoop::deliver() {
  // A callback may submit or cancel, which only fills the inbox.
  for (const auto& [callback, event] : std::exchange(events_, {})) {
    callback(event);
  }
}

EngineStats EngineLoop::stats() const {
  EngineStats stats = totals_;
  const SchedulerStats scheduler = scheduler_.stats();
  const KVCacheStats kv = kv_.stats();
  stats.requests_running = scheduler.num_running;
  stats.requests_waiting = scheduler.num_waiting;
  stats.slots_used = kv.slots_used;
  stats.slots_idle = kv.slots_idle;
  stats.slots_total = kv.slots_total;
  stats.slot_bytes = static_cast<std::int64_t>(kv_.spec().slot_bytes());
  stats.prefix_cache_queries_tokens = scheduler.prefix_queries_tokens;
  stats.prefix_cache_hits_tokens = scheduler.prefix_hits_tokens;
  stats.preemptions = scheduler.preemptions;
  stats.demotions = scheduler.demotions;
  if (speculation_ != nullptr) {
    stats.has_speculation = true;
    stats.speculation = speculation_->stats();
  }
  if (compressor_ != nullptr) {
    stats.compression = compressor_->stats();
    stats.compression.early_windows = scheduler.early_windows;
    stats.compression.pairs_brought_back = runner_.archived_pages_read() * kBlockSize;
  }
  if (restorer_ != nullptr) {
    stats.requests_waiting += static_cast<int>(restorer_->num_held());
    stats.has_store = true;
    stats.store = store_->stats();
    stats.restores = restorer_->stats();
  }
  if (peers_.producer != nullptr) {
    stats.peers.produces = true;
    stats.peers.producer = peers_.producer->stats();
  }
  if (peers_.consumer != nullptr) {
    stats.peers.consumes = true;
    stats.peers.consumer = peers_.consumer->stats();
    stats.requests_waiting += peers_.consumer->num_arrivals();
  }
  if (kv_.residency() != nullptr) {
    stats.has_home = true;
    stats.tiers = kv_.residency()->stats();
  }
  return stats;
}

}  // namespace karez
