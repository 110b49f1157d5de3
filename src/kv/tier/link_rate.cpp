#include "kv/tier/link_rate.h"

#include <chrono>

namespace karez {

namespace {
// Fewer bytes are mostly latency.
constexpr double kSampleBytes = 256.0 * 1024.0;
constexpr double kWeight = 0.25;
}  // namespace

void LinkRate::note(Clock::TimePoint now, std::int64_t bytes, int num_results, int in_flight) {
  if (in_flight_ > 0) {
    seconds_ += std::chrono::duration<double>(now - last_).count();
    bytes_ += static_cast<double>(bytes);
    const bool was_busy_throughout = num_results < in_flight_;
    if (!was_busy_throughout || bytes_ >= kSampleBytes) {
      const double sample = seconds_ > 0 ? bytes_ / seconds_ : 0;
      if (was_busy_throughout || sample > rate_) {
        approach(sample);
      }
      bytes_ = 0;
      seconds_ = 0;
    }
  }
  in_flight_ = in_flight;
  last_ = now;
}

void LinkRate::approach(double sample) {
  rate_ = rate_ == 0 ? sample : rate_ + kWeight * (sample - rate_);
}

}  // namespace karez
