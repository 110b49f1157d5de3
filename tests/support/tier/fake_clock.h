// A clock that stands still until somebody sleeps on it or moves it.
//
// Thread: one.
#pragma once

#include <algorithm>

#include "base/clock.h"

namespace karez::test {

class FakeClock final : public Clock {
 public:
  TimePoint now() const override { return now_; }
  void sleep_until(TimePoint time) const override { now_ = std::max(now_, time); }
  void advance(Duration duration) { now_ += duration; }

 private:
  mutable TimePoint now_ = TimePoint(std::chrono::hours(1));
};

}  // namespace karez::test
