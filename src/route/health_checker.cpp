#include "route/health_checker.h"

#include <fmt/format.h>

#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "route/node_call.h"
#include "server/asio.h"

namespace karez {
namespace {

constexpr std::size_t kMaxAnswerBytes = 64 * 1024;

}  // namespace

class HealthChecker::Impl {
 public:
  Impl(const HealthCheckOptions& options, NodeTable& nodes,
       std::function<void(NodeId, const NodeState&)> on_news)
      : options_(options), nodes_(nodes), on_news_(std::move(on_news)), slots_(nodes.size()) {
    for (NodeId node = 0; node < nodes_.size(); ++node) {
      slots_[node].pause = std::make_unique<asio::steady_timer>(context_);
      asio::co_spawn(context_, watch(node), asio::detached);
    }
    thread_ = std::thread([this] { context_.run(); });
  }

  ~Impl() {
    asio::post(context_, [this] {
      stopping_ = true;
      for (Slot& slot : slots_) {
        slot.pause->cancel();
        if (slot.call != nullptr) {
          slot.call->cancel();
        }
      }
    });
    thread_.join();  // every coroutine ends, and with them the context's work
  }

  void wait_for_first_round(std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    first_round_.wait_for(lock, limit, [this] { return num_asked_ == slots_.size(); });
  }

 private:
  struct Slot {
    std::unique_ptr<asio::steady_timer> pause;  // between checks, and for the look-up
    NodeCall* call = nullptr;                   // while one is under way
  };

  asio::awaitable<void> watch(NodeId node) {
    Slot& slot = slots_[node];
    for (bool is_first = true; !stopping_; is_first = false) {
      co_await look_up(node);
      if (stopping_) {
        break;
      }
      std::string problem = co_await ask(node);
      if (stopping_) {
        break;
      }
      if (nodes_.check(node, std::move(problem), NodeTable::Clock::now())) {
        on_news_(node, nodes_.states()[node]);
      }
      if (is_first) {
        const std::lock_guard lock(mutex_);
        ++num_asked_;
        first_round_.notify_all();
      }
      boost::system::error_code ignored;
      slot.pause->expires_after(options_.interval);
      co_await slot.pause->async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    }
  }

  asio::awaitable<void> look_up(NodeId node) {
    asio::steady_timer& timer = *slots_[node].pause;
    timer.expires_after(options_.timeout);
    // Posted, so that it comes after the wait has begun.
    const bool is_begun = nodes_.address(node).look_up(
        [this, &timer] { asio::post(context_, [&timer] { timer.cancel(); }); });
    if (is_begun) {
      boost::system::error_code ignored;
      co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
      nodes_.address(node).forget_on_end();
    }
  }

  // What is wrong with the node; empty: nothing.
  asio::awaitable<std::string> ask(NodeId node) {
    const NodeDeadlines deadlines{.connect = options_.timeout, .answer = options_.timeout};
    NodeCall call(context_.get_executor(), nodes_.address(node), deadlines);
    slots_[node].call = &call;
    NodeRequest request;
    request.method = "GET";
    request.target = "/health";
    std::string problem;
    auto answer = co_await call.send(std::move(request));
    if (answer) {
      const auto body = co_await call.read_all(kMaxAnswerBytes);
      if (!body) {
        problem = body.error().message();
      } else if (answer->status != 200) {
        problem = fmt::format("/health says {}", answer->status);
      }
    } else {
      problem = answer.error().message();
    }
    slots_[node].call = nullptr;
    co_return problem;
  }

  const HealthCheckOptions options_;
  NodeTable& nodes_;
  const std::function<void(NodeId, const NodeState&)> on_news_;
  asio::io_context context_{1};
  std::vector<Slot> slots_;  // the thread's, as stopping_
  bool stopping_ = false;
  std::mutex mutex_;  // of the two below
  std::condition_variable first_round_;
  std::size_t num_asked_ = 0;
  std::thread thread_;
};

HealthChecker::HealthChecker(const HealthCheckOptions& options, NodeTable& nodes,
                             std::function<void(NodeId, const NodeState&)> on_news)
    : impl_(std::make_unique<Impl>(options, nodes, std::move(on_news))) {}

HealthChecker::~HealthChecker() = default;

void HealthChecker::wait_for_first_round(std::chrono::milliseconds limit) {
  impl_->wait_for_first_round(limit);
}

}  // namespace karez
