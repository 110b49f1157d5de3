// What the scheduler knows of compression: which sequences wait for it, and how they get room.
#include "base/check.h"
#include "sched/scheduler.h"

namespace karez {

std::vector<CompressionCandidate> Scheduler::compression_candidates() const {
  KAREZ_CHECK(!plan_is_open_, "windows are compressed between steps");
  std::vector<CompressionCandidate> candidates;
  for (const auto& [key, sequence] : running_) {
    if (sequence.compression.is_on() && !sequence.compression_stopped) {
      candidates.push_back({key, sequence.request, sequence.choice, sequence.num_choices,
                            sequence.kv, sequence.num_computed_tokens, sequence.compression,
                            sequence.num_compressed_windows, sequence.next_publication()});
    }
  }
  return candidates;
}

bool Scheduler::is_short_of_slots(std::int64_t spare) const {
  const std::int64_t block_slots = kv_.spec().slots_for_sequence(kBlockSize, kBlockSize);
  return home_blocks_ == 0 && kv_.slots_available() < spare + block_slots * num_running();
}

void Scheduler::publish_early(const ScheduleKey& key) {
  const auto it = running_.find(key);
  KAREZ_CHECK(!plan_is_open_ && it != running_.end(), "running sequences are compressed");
  Sequence& sequence = it->second;
  KAREZ_CHECK(sequence.compression.may_be_early(sequence.num_compressed_windows,
                                                sequence.num_computed_tokens),
              "tokens lie behind the window");
  sequence.early_publications[sequence.num_compressed_windows] = sequence.num_computed_tokens;
  ++counters_.early_windows;
}

void Scheduler::compressed(const ScheduleKey& key) {
  const auto it = running_.find(key);
  KAREZ_CHECK(!plan_is_open_ && it != running_.end(), "running sequences are compressed");
  ++it->second.num_compressed_windows;
}

bool Scheduler::make_room_to_compress(const ScheduleKey& key, std::int64_t slots) {
  while (slots > kv_.slots_available()) {
    if (drop_last_demoted()) {
      continue;
    }
    const auto last = std::prev(running_.end());
    if (last->first == key) {
      // What others hold comes back: that is worth waiting for.
      last->second.compression_stopped = running_.size() == 1 && slots_of_others_ == 0;
      return false;
    }
    preempt_last();
  }
  return true;
}

void Scheduler::stop_compressing(const ScheduleKey& key) {
  const auto it = running_.find(key);
  KAREZ_CHECK(!plan_is_open_ && it != running_.end(), "running sequences are compressed");
  it->second.compression_stopped = true;
}

bool Scheduler::recompute(const ScheduleKey& key) {
  const auto it = running_.find(key);
  KAREZ_CHECK(!plan_is_open_ && it != running_.end(), "a running sequence is computed again");
  return start_again(it);
}

}  // namespace karez
