// Progress of a benchmark on stderr: what is done now and the time left.
//
// Thread: one caller at a time.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

namespace karez {

class BenchProgressLine {
 public:
  BenchProgressLine();
  ~BenchProgressLine();
  BenchProgressLine(const BenchProgressLine&) = delete;
  BenchProgressLine& operator=(const BenchProgressLine&) = delete;

  // done: the part of the work that is done, in [0, 1]; falling back to less starts a new estimate.
  void update(std::string_view what, double done);

 private:
  using Clock = std::chrono::steady_clock;

  bool is_terminal_;
  bool drawn_ = false;
  Clock::time_point start_ = Clock::now();
  Clock::time_point last_line_;
  double last_done_ = 0;
};

}  // namespace karez
