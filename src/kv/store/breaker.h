// Stops the use of something that fails, and tries it again later.
//
//   closed --failures in a row, or one that says so--> open --after a pause--> one trial
//   trial: success --> closed;  failure, or no answer --> open, for twice as long
//
// Thread: a value; its owner locks.
#pragma once

#include <string>

#include "base/clock.h"

namespace karez {

struct BreakerOptions {
  int failures_in_a_row = 3;  // that open it
  Clock::Duration first_pause = std::chrono::seconds(5);
  Clock::Duration longest_pause = std::chrono::seconds(60);
  Clock::Duration trial_limit = std::chrono::seconds(30);  // then a trial has failed
};

class Breaker {
 public:
  explicit Breaker(const BreakerOptions& options = {}) : options_(options) {}

  // Whether it may be used now. True makes an attempt: if it is open, the one trial.
  [[nodiscard]] bool allow(Clock::TimePoint now);
  // True: it was open, and is closed now.
  bool succeed();
  // at_once: whatever came before. True: it has opened for a reason that is not the last one.
  bool fail(Clock::TimePoint now, std::string reason, bool at_once);

  bool is_open() const { return is_open_; }
  const std::string& reason() const { return reason_; }

 private:
  BreakerOptions options_;
  bool is_open_ = false;
  int failures_ = 0;
  Clock::Duration pause_ = {};
  Clock::TimePoint retry_at_ = {};
  std::string reason_;  // of the last failure that opened it
};

}  // namespace karez
