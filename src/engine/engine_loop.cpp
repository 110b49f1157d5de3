#include "engine/engine_loop.h"

#include <span>

#include "base/check.h"
#include "engine/step_batch.h"

namespace karez {

EngineLoop::EngineLoop(ModelRunner& runner, KVCacheManager& kv, const KeyIndex* key_index,
                       BlockLoader* loader, std::unique_ptr<PrefixCache> prefix_cache,
                       const SchedulerOptions& options, std::function<double()> clock)
    : runner_(runner),
      kv_(kv),
      key_index_(key_index),
      loader_(loader),
      prefix_cache_(std::move(prefix_cache)),
      scheduler_(kv, prefix_cache_.get(), options),
      clock_(std::move(clock)) {
  KAREZ_CHECK(loader != nullptr || kv.residency() == nullptr, "a home tier needs a loader");
}

void EngineLoop::add(Submission submission) {
  const Request& request = *submission.request;
  scheduler_.add(request);
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

void EngineLoop::plan() {
  step_start_seconds_ = clock_();
  plan_ = scheduler_.schedule();
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
  const ForwardBatch batch = make_batch(plan, kv_, key_index_);
  const double forward_start = clock_();
  if (loader_ != nullptr) {
    loader_->begin_step(kv_, batch.sequences);
  }
  const auto logits = runner_.forward(batch, kv_);
  std::vector<BlockLoader::SequenceReads> reads;
  if (loader_ != nullptr) {
    reads = loader_->end_step();
  }
  totals_.forward_seconds += clock_() - forward_start;
  if (std::exchange(wants_kv_map_, false)) {
    const PlannedSequence& first = plan.sequences.front();
    kv_map_ = std::make_shared<const KvMap>(make_kv_map(kv_, first.request, first.kv));
  }
  if (logits) {
    note_reads(plan, reads);
    const StepOutput output = sample(plan, *logits);
    scheduler_.update(plan, output);
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

void EngineLoop::note_reads(StepPlan& plan, std::span<const BlockLoader::SequenceReads> reads) {
  for (std::size_t i = 0; i < reads.size(); ++i) {
    PlannedSequence& planned = plan.sequences[i];
    ActiveRequest& active = active_.at(planned.request);
    active.kv_blocks_read += reads[i].blocks_read;
    active.kv_blocks_loaded += reads[i].blocks_loaded;
    active.kv_missed.add(reads[i].missed);
    totals_.missed.add(reads[i].missed);
    if (reads[i].is_lost && !scheduler_.lose(planned)) {
      end_choices(
          planned.request, planned.choice, planned.num_choices, FinishReason::kError,
          Status(StatusCode::kUnavailable,
                 "keys and values could not be read back from the tier below the fast one"));
    }
  }
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
  const auto vocab_size = static_cast<std::size_t>(runner_.config().vocab_size);
  for (const PlannedSequence& planned : plan.sequences) {
    if (!planned.wants_logits) {
      continue;
    }
    if (planned.is_lost) {
      logits = logits.subspan(vocab_size);
      continue;
    }
    KAREZ_CHECK(logits.size() >= vocab_size, "logits for each output row");
    const std::span<const float> row = logits.first(vocab_size);
    logits = logits.subspan(vocab_size);
    ActiveRequest& active = active_.at(planned.request);
    if (!active.first_token_seconds) {
      active.first_token_seconds = clock_();
      totals_.prompt_tokens += static_cast<std::int64_t>(active.submission.request->prompt.size());
    }
    for (int i = 0; i < planned.num_choices; ++i) {
      const auto choice = static_cast<std::size_t>(planned.choice + i);
      ChoiceStream::Step step = active.submission.choices[choice].next(row, scratch_);
      ++totals_.generated_tokens;
      output.samples.push_back(step.sampled);
      if (step.event) {
        keep_event(active, std::move(*step.event));
      }
    }
    if (active.num_unfinished == 0) {
      active_.erase(planned.request);
    }
  }
  return output;
}

void EngineLoop::end_choices(RequestId id, int first_choice, int num_choices, FinishReason reason,
                             const std::optional<Status>& error) {
  ActiveRequest& active = active_.at(id);
  for (int i = first_choice; i < first_choice + num_choices; ++i) {
    ChoiceStream& choice = active.submission.choices[static_cast<std::size_t>(i)];
    if (!choice.finished()) {
      keep_event(active, choice.end(reason, error));
    }
  }
  if (active.num_unfinished == 0) {
    active_.erase(id);
  }
}

void EngineLoop::keep_event(ActiveRequest& active, GenerationEvent event) {
  const double now = clock_();
  event.prompt_tokens = static_cast<int>(active.submission.request->prompt.size());
  event.cached_tokens = active.cached_tokens;
  event.kv_blocks_read = active.kv_blocks_read;
  event.kv_blocks_loaded = active.kv_blocks_loaded;
  event.kv_missed = active.kv_missed;
  const double scheduled = active.scheduled_seconds.value_or(now);
  const double first_token = active.first_token_seconds.value_or(now);
  event.timings.queue_seconds = scheduled - active.submission.submitted_seconds;
  event.timings.prefill_seconds = first_token - scheduled;
  event.timings.decode_seconds = now - first_token;
  if (event.finished) {
    --active.num_unfinished;
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
  if (kv_.residency() != nullptr) {
    stats.has_home = true;
    stats.tiers = kv_.residency()->stats();
  }
  return stats;
}

}  // namespace karez
