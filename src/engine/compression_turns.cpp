#include "engine/compression_turns.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace karez {
namespace {

CompressionTask task_of(const CompressionCandidate& candidate) {
  return {candidate.kv, candidate.num_tokens, candidate.schedule, candidate.window,
          candidate.publication};
}

}  // namespace

int units_of_turn(std::span<const WindowCompressor::Phase> phases) {
  std::vector<WindowCompressor::Phase> by_deadline(phases.begin(), phases.end());
  std::ranges::sort(by_deadline, {}, &WindowCompressor::Phase::tokens_left);
  std::int64_t units = 0;
  std::int64_t of_turn = 0;
  for (const WindowCompressor::Phase& phase : by_deadline) {
    units += phase.units;
    // This turn is one of them.
    const std::int64_t turns = std::int64_t{phase.tokens_left} + 1;
    of_turn = std::max(of_turn, (units + turns - 1) / turns);
  }
  return static_cast<int>(of_turn);
}

// Better a window early than a sequence that is computed again. One at a time, and only into slots
// that are there: one that is due takes its slots from others.
void CompressionTurns::publish_early(Scheduler& scheduler) const {
  const std::vector<CompressionCandidate> candidates = scheduler.compression_candidates();
  if (std::ranges::any_of(candidates, &CompressionCandidate::is_due)) {
    return;
  }
  for (const CompressionCandidate& candidate : candidates) {
    if (!candidate.schedule.may_be_early(candidate.window, candidate.num_tokens)) {
      continue;
    }
    const CompressionTask task = task_of(candidate);
    if (!scheduler.is_short_of_slots(compressor_.slots_to_publish(task))) {
      return;
    }
    if (compressor_.has_slots_to_publish(task)) {
      scheduler.publish_early(candidate.key);
      return;
    }
  }
}

std::vector<EndedSequence> CompressionTurns::run(
    Scheduler& scheduler, const std::function<bool(RequestId)>& may_recompute) {
  struct Job {
    CompressionCandidate candidate;
    CompressionTask task;
    WindowCompressor::Phase phase;
  };
  publish_early(scheduler);
  std::vector<Job> jobs;
  std::vector<WindowCompressor::Phase> phases;
  for (const CompressionCandidate& candidate : scheduler.compression_candidates()) {
    const CompressionTask task = task_of(candidate);
    const WindowCompressor::Phase phase = compressor_.phase(task);
    if (phase.units > 0 || candidate.is_due()) {
      jobs.push_back({candidate, task, phase});
      phases.push_back(phase);
    }
  }
  std::vector<EndedSequence> ended;
  // Those that wait come first: one that was published early has its slots now.
  std::ranges::stable_sort(jobs, {}, [](const Job& job) {
    return std::pair(!job.candidate.is_due(), job.phase.tokens_left);
  });
  int units = units_of_turn(phases);
  int sequences_left = compressor_.options().sequences_per_step;
  for (const Job& job : jobs) {
    if (sequences_left == 0 || (units == 0 && !job.candidate.is_due())) {
      break;
    }
    --sequences_left;
    // One that waits for it is brought to its end.
    int rest = job.candidate.is_due() ? std::max(units, job.phase.units) : units;
    const int before = rest;
    WindowCompressor::Outcome outcome = compressor_.work(job.task, rest);
    const bool makes_room = outcome == WindowCompressor::Outcome::kNoRoom && job.candidate.is_due();
    if (makes_room && scheduler.make_room_to_compress(job.candidate.key,
                                                      compressor_.slots_to_publish(job.task))) {
      outcome = compressor_.work(job.task, rest);
      if (outcome == WindowCompressor::Outcome::kNoRoom) {
        scheduler.stop_compressing(job.candidate.key);
      }
    }
    units = std::max(0, units - (before - rest));
    if (outcome == WindowCompressor::Outcome::kPublished) {
      scheduler.compressed(job.candidate.key);
    } else if (outcome == WindowCompressor::Outcome::kLost) {
      const CompressionCandidate& lost = job.candidate;
      if (may_recompute(lost.request) && !scheduler.recompute(lost.key)) {
        ended.push_back({lost.request, lost.choice, lost.num_choices});
      }
    }
    if (makes_room) {
      break;  // those behind it may have been preempted
    }
  }
  return ended;
}

}  // namespace karez
