// Holds whoever passes until it is opened.
//
// Thread: any.
#pragma once

#include <condition_variable>
#include <mutex>

namespace karez::test {

class Gate {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    is_held_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return is_open_; });
  }
  void wait_until_held() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_held_; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_held_ = false;
  bool is_open_ = false;
};

}  // namespace karez::test
