// Ctrl-C (SIGINT) and SIGTERM: the first asks for a clean end, the second ends the process.
//
// Thread: install once, on the main thread.
#pragma once

#include <atomic>

namespace karez {

class InterruptGuard {
 public:
  InterruptGuard();
  // Puts the default handling back.
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  // True after the first signal. Lives as long as the process.
  const std::atomic<bool>& flag() const;
};

}  // namespace karez
