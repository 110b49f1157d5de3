// Coroutines of I/O threads: work that would hold such a thread up, and counting what is under way.
//
// Thread: on_worker() on the executor's thread; the work runs on the pool's.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <utility>

#include "server/asio.h"

namespace karez {

// Runs work on the pool and comes back to the coroutine's own thread with its result.
template <typename Work>
auto on_worker(asio::thread_pool& pool, asio::any_io_executor executor, Work work)
    -> asio::awaitable<decltype(work())> {
  using Result = decltype(work());
  auto result = std::make_shared<std::optional<Result>>();
  auto done = std::make_shared<asio::steady_timer>(executor, asio::steady_timer::time_point::max());
  asio::post(pool, [result, done, executor, task = std::move(work)]() mutable {
    result->emplace(task());
    asio::post(executor, [done] { done->cancel(); });
  });
  boost::system::error_code ignored;
  // A result that is ready now is announced after the wait has begun: this thread runs both.
  co_await done->async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  co_return std::move(**result);
}

struct ActiveCount {
  explicit ActiveCount(std::atomic<int>& count) : count_(count) { ++count_; }
  ~ActiveCount() { --count_; }
  ActiveCount(const ActiveCount&) = delete;
  ActiveCount& operator=(const ActiveCount&) = delete;
  std::atomic<int>& count_;
};

}  // namespace karez
