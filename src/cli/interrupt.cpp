#include "cli/interrupt.h"

#include <csignal>

namespace karez {
namespace {

std::atomic<bool> interrupted = false;
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler must not wait");

extern "C" void on_signal(int signal_number) {
  interrupted.store(true, std::memory_order_relaxed);
  // A program that does not come to an end must still be stoppable.
  std::signal(signal_number, SIG_DFL);
}

void set_handler(void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

}  // namespace

InterruptGuard::InterruptGuard() { set_handler(on_signal); }
InterruptGuard::~InterruptGuard() { set_handler(SIG_DFL); }

const std::atomic<bool>& InterruptGuard::flag() const { return interrupted; }

}  // namespace karez
