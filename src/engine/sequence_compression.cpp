#include "engine/sequence_compression.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "engine/compression_turns.h"

namespace karez {

SequenceCompression::SequenceCompression(WindowCompressor* compressor, SequenceId sequence,
                                         const CompressionSchedule& schedule)
    : compressor_(compressor), sequence_(sequence), schedule_(schedule) {
  KAREZ_CHECK(compressor != nullptr || !schedule.is_on(), "somebody compresses");
}

SequenceCompression::~SequenceCompression() {
  if (schedule_.is_on()) {
    compressor_->forget(sequence_);
  }
}

QueryRing* SequenceCompression::ring(int first_row, int num_rows) {
  return schedule_.scores_with_rows(first_row, num_rows) ? compressor_->ring(sequence_, schedule_)
                                                         : nullptr;
}

int SequenceCompression::max_rows(int num_tokens) const {
  if (!schedule_.is_on() || is_stopped_) {
    return std::numeric_limits<int>::max();
  }
  return static_cast<int>(std::min<std::int64_t>(schedule_.publication_of(window_) - num_tokens,
                                                 std::numeric_limits<int>::max()));
}

bool SequenceCompression::give_back_slots() {
  return schedule_.is_on() && compressor_->give_back_slots(sequence_);
}

bool SequenceCompression::advance(int num_tokens) {
  if (!schedule_.is_on() || is_stopped_) {
    return true;
  }
  const WindowCompressor::Phase phase = compressor_->phase(task(num_tokens));
  int units = units_of_turn(std::span(&phase, 1));
  switch (compressor_->work(task(num_tokens), units)) {
    case WindowCompressor::Outcome::kWorking:
      return true;
    case WindowCompressor::Outcome::kPublished:
      ++window_;
      return true;
    case WindowCompressor::Outcome::kNoRoom:
      is_stopped_ = max_rows(num_tokens) == 0;
      return true;
    case WindowCompressor::Outcome::kLost:
      break;
  }
  return false;
}

}  // namespace karez
