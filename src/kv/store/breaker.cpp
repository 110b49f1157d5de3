#include "kv/store/breaker.h"

#include <algorithm>
#include <utility>

namespace karez {

bool Breaker::allow(Clock::TimePoint now) {
  if (!is_open_) {
    return true;
  }
  if (now < retry_at_) {
    return false;
  }
  retry_at_ = now + options_.trial_limit;
  return true;
}

bool Breaker::succeed() {
  failures_ = 0;
  pause_ = {};
  reason_.clear();
  return std::exchange(is_open_, false);
}

bool Breaker::fail(Clock::TimePoint now, std::string reason, bool at_once) {
  ++failures_;
  if (!is_open_ && !at_once && failures_ < options_.failures_in_a_row) {
    return false;
  }
  pause_ = std::clamp(pause_ * 2, options_.first_pause, options_.longest_pause);
  retry_at_ = now + pause_;
  is_open_ = true;
  return std::exchange(reason_, reason) != reason;
}

}  // namespace karez
