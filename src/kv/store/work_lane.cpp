#include "kv/store/work_lane.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

namespace karez {
namespace {

constexpr std::chrono::milliseconds kPatience{200};  // for a job that is about to end

}  // namespace

struct WorkLane::Shared {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> jobs;
  bool is_busy = false;
  bool is_stopping = false;
  bool has_ended = false;

  void run() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return is_stopping || !jobs.empty(); });
      if (is_stopping) {
        break;
      }
      std::function<void()> job = std::move(jobs.front());
      jobs.pop_front();
      is_busy = true;
      lock.unlock();
      job();
      job = nullptr;  // what it shares goes before anyone is told
      lock.lock();
      is_busy = false;
      changed.notify_all();
    }
    has_ended = true;
    changed.notify_all();
  }
};

WorkLane::WorkLane()
    : shared_(std::make_shared<Shared>()), thread_([shared = shared_] { shared->run(); }) {}

WorkLane::~WorkLane() {
  bool has_ended = false;
  {
    std::unique_lock lock(shared_->mutex);
    shared_->is_stopping = true;
    shared_->jobs.clear();
    shared_->changed.notify_all();
    has_ended = shared_->changed.wait_for(lock, kPatience, [&] { return shared_->has_ended; });
  }
  if (has_ended) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void WorkLane::submit(std::function<void()> job) {
  const std::lock_guard lock(shared_->mutex);
  shared_->jobs.push_back(std::move(job));
  shared_->changed.notify_all();
}

bool WorkLane::wait_until_idle(std::chrono::milliseconds limit) {
  std::unique_lock lock(shared_->mutex);
  return shared_->changed.wait_for(lock, limit,
                                   [&] { return shared_->jobs.empty() && !shared_->is_busy; });
}

}  // namespace karez
