// Threads that run jobs and hand them back: a queue in, a queue out. Knows nothing of the jobs.
//
// Thread: one owner thread calls it; `run` is called on the workers, one job at a time on each.
// Owns: the threads and the jobs between submit() and take().
#pragma once

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <iterator>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/clock.h"

namespace karez {

template <typename Job>
class CopyWorkers {
 public:
  // Throws std::system_error if a thread cannot be started; then none is left running.
  CopyWorkers(int num_workers, std::function<void(Job&)> run) : run_(std::move(run)) {
    try {
      for (int i = 0; i < num_workers; ++i) {
        threads_.emplace_back([this] { work(); });
      }
    } catch (...) {
      stop();
      throw;
    }
  }
  CopyWorkers(const CopyWorkers&) = delete;
  CopyWorkers& operator=(const CopyWorkers&) = delete;
  // Jobs that no worker has begun are dropped.
  ~CopyWorkers() { stop(); }

  void submit(std::span<const Job> jobs) {
    {
      const std::lock_guard lock(mutex_);
      waiting_.insert(waiting_.end(), jobs.begin(), jobs.end());
    }
    if (jobs.size() == 1) {
      has_work_.notify_one();
    } else if (!jobs.empty()) {
      has_work_.notify_all();
    }
  }

  // Swaps the finished jobs into `jobs`, whose old content is dropped.
  void take(std::vector<Job>& jobs) {
    jobs.clear();
    const std::lock_guard lock(mutex_);
    jobs.swap(finished_);
  }

  // Until take() would give a job, or until `time`.
  void wait_until(Clock::TimePoint time) {
    std::unique_lock lock(mutex_);
    has_finished_.wait_until(lock, time, [this] { return !finished_.empty(); });
  }

 private:
  // Few enough that several workers share a batch, many enough that the lock costs nothing.
  static constexpr std::size_t kJobsPerTurn = 8;

  void work() {
    std::vector<Job> turn;
    std::unique_lock lock(mutex_);
    while (true) {
      has_work_.wait(lock, [this] { return stops_ || !waiting_.empty(); });
      if (stops_) {
        return;
      }
      const auto end =
          waiting_.begin() + static_cast<std::ptrdiff_t>(std::min(waiting_.size(), kJobsPerTurn));
      turn.assign(waiting_.begin(), end);
      waiting_.erase(waiting_.begin(), end);
      lock.unlock();
      for (Job& job : turn) {
        run_(job);
      }
      lock.lock();
      finished_.insert(finished_.end(), turn.begin(), turn.end());
      has_finished_.notify_one();
    }
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stops_ = true;
    }
    has_work_.notify_all();
    for (std::thread& thread : threads_) {
      thread.join();
    }
    threads_.clear();
  }

  std::function<void(Job&)> run_;
  std::mutex mutex_;
  std::condition_variable has_work_;
  std::condition_variable has_finished_;
  std::deque<Job> waiting_;
  std::vector<Job> finished_;
  bool stops_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace karez
