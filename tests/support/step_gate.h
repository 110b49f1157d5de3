// Holds an engine's thread in one of its steps, so that what a test does meanwhile comes before the
// next one, however slow the machine is.
//
// Thread: pass() by the engine's; the rest by one other.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <future>

namespace karez::test {

class StepGate {
 public:
  // The number of the step from 0.
  explicit StepGate(int step) : step_(step) {}

  // In each step.
  void pass() {
    if (num_passed_++ == step_) {
      is_held_.set_value();
      is_open_.get_future().wait();
    }
  }
  // Once, as open().
  void wait_until_held() {
    EXPECT_TRUE(is_held_.get_future().wait_for(std::chrono::minutes(1)) ==
                std::future_status::ready);
  }
  void open() { is_open_.set_value(); }

 private:
  const int step_;
  int num_passed_ = 0;
  std::promise<void> is_held_;
  std::promise<void> is_open_;
};

}  // namespace karez::test
