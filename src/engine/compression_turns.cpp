#include "engine/compression_turns.h"

#include <algorithm>
#include <cstdint>

namespace karez {

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

std::vector<EndedSequence> CompressionTurns::run(
    Scheduler& scheduler, const std::function<bool(RequestId)>& may_recompute) {
  struct Job {
    CompressionCandidate candidate;
    CompressionTask task;
    WindowCompressor::Phase phase;
  };
  // Better a window early than a sequence that is computed again.
  for (const CompressionCandidate& candidate : scheduler.compression_candidates()) {
    if (!candidate.schedule.may_be_early(candidate.window, candidate.num_tokens) ||
        candidate.is_due()) {
      continue;
    }
    if (scheduler.is_short_of_slots(compressor_.slots_to_pack(candidate.schedule))) {
      scheduler.publish_early(candidate.key);
    }
    break;
  }
  std::vector<Job> jobs;
  std::vector<WindowCompressor::Phase> phases;
  for (const CompressionCandidate& candidate : scheduler.compression_candidates()) {
    const CompressionTask task{candidate.kv, candidate.num_tokens, candidate.schedule,
                               candidate.window, candidate.publication};
    const WindowCompressor::Phase phase = compressor_.phase(task);
    if (phase.units > 0 || candidate.is_due()) {
      jobs.push_back({candidate, task, phase});
      phases.push_back(phase);
    }
  }
  std::vector<EndedSequence> ended;
  std::ranges::stable_sort(jobs, {}, [](const Job& job) { return job.phase.tokens_left; });
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
    if (makes_room && scheduler.make_room_to_compress(
                          job.candidate.key, compressor_.slots_to_pack(job.candidate.schedule))) {
      outcome = compressor_.work(job.task, rest);
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
