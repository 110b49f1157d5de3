#include "cli/bench_progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "cli/report.h"
#include "cli/terminal.h"

namespace karez {
namespace {

// In a log, one line in this time is enough.
constexpr std::chrono::seconds kLogInterval(10);
// Before this part is done, an estimate would be a guess.
constexpr double kEnoughForEstimate = 0.03;

}  // namespace

BenchProgressLine::BenchProgressLine() : is_terminal_(isatty(STDERR_FILENO) == 1) {}

BenchProgressLine::~BenchProgressLine() {
  if (drawn_) {
    write_stderr(fmt::format("\r\x1b[K"));
  }
}

void BenchProgressLine::update(std::string_view what, double done) {
  const Clock::time_point now = Clock::now();
  if (done < last_done_) {
    start_ = now;
  }
  last_done_ = done;
  std::string line = fmt::format("{:3.0f} %  {}", done * 100, what);
  if (done > kEnoughForEstimate) {
    const double elapsed = std::chrono::duration<double>(now - start_).count();
    line += fmt::format(", about {} left", format_seconds(elapsed * (1 - done) / done));
  }
  if (is_terminal_) {
    write_stderr(fmt::format("\r\x1b[K{}", line));
    std::fflush(stderr);
    drawn_ = true;
  } else if (now - last_line_ >= kLogInterval) {
    write_stderr(fmt::format("{}\n", line));
    last_line_ = now;
  }
}

}  // namespace karez
