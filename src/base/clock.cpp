#include "base/clock.h"

#include <thread>

namespace karez {

namespace {
class SteadyClock final : public Clock {
 public:
  TimePoint now() const override { return std::chrono::steady_clock::now(); }
  void sleep_until(TimePoint time) const override { std::this_thread::sleep_until(time); }
};
}  // namespace

const Clock& Clock::steady() {
  static const SteadyClock clock;
  return clock;
}

}  // namespace karez
