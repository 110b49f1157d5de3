// How many bytes a second a tier moves, from what its owner sees at polls.
//
// Polls are rare beside transfers, so that a poll that finds all of them done says only "at least
// so fast": that raises the figure. One that finds some of them still under way has seen the link
// at work all the time since the last poll: that is a measurement, and may lower it.
// Thread: one owner thread.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace karez {

class LinkRate {
 public:
  // After each poll: what it gave, and what is in flight after it.
  void note(Clock::TimePoint now, std::int64_t bytes, int num_results, int in_flight);
  // 0: not known yet.
  double bytes_per_second() const { return rate_; }

 private:
  void approach(double sample);

  double rate_ = 0;
  double bytes_ = 0;    // since the last figure
  double seconds_ = 0;  // likewise
  int in_flight_ = 0;   // after the last poll
  Clock::TimePoint last_;
};

}  // namespace karez
