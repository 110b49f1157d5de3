// One thread that does jobs in order, and that its owner can leave behind.
//
// A job may hang for good (a disk that does not answer). Then the destructor does not wait: the
// thread goes on alone, and ends when its job does. Whatever a job touches it must therefore own,
// or share.
// Thread: every call from any thread; the destructor from one.
// Owns: the thread, as long as it is alive.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <thread>

namespace karez {

class WorkLane {
 public:
  WorkLane();
  // Jobs that wait are not done any more. Waits `patience` at most for the one at hand.
  ~WorkLane();
  WorkLane(const WorkLane&) = delete;
  WorkLane& operator=(const WorkLane&) = delete;

  void submit(std::function<void()> job);
  // Waits until all jobs are done. False: that took longer.
  bool wait_until_idle(std::chrono::milliseconds limit);

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace karez
