// Time as an argument: the steady clock, or one that a test moves by hand.
//
// Thread: const calls from any thread.
#pragma once

#include <chrono>

namespace karez {

class Clock {
 public:
  using Duration = std::chrono::steady_clock::duration;
  using TimePoint = std::chrono::steady_clock::time_point;

  virtual ~Clock() = default;

  virtual TimePoint now() const = 0;
  // Returns at `time` or later; at once if that has passed.
  virtual void sleep_until(TimePoint time) const = 0;

  // The machine's. Lives as long as the process.
  static const Clock& steady();

 protected:
  Clock() = default;
  Clock(const Clock&) = default;
  Clock& operator=(const Clock&) = default;
};

}  // namespace karez
