#include "route/exchange_watch.h"

#include <chrono>
#include <utility>

namespace karez {
namespace {

constexpr std::chrono::milliseconds kInterval{100};

}  // namespace

struct ExchangeWatch::State {
  asio::steady_timer timer;
  NodeCall* call;  // null: the watch is over
  std::function<bool()> must_end;
};

ExchangeWatch::ExchangeWatch(asio::any_io_executor executor, NodeCall& call,
                             std::function<bool()> must_end)
    : state_(std::make_shared<State>(
          State{asio::steady_timer(executor), &call, std::move(must_end)})) {
  wait(state_);
}

ExchangeWatch::~ExchangeWatch() {
  state_->call = nullptr;
  state_->timer.cancel();
}

void ExchangeWatch::wait(const std::shared_ptr<State>& state) {
  state->timer.expires_after(kInterval);
  state->timer.async_wait([state](const boost::system::error_code& error) {
    if (error || state->call == nullptr) {
      return;
    }
    if (state->must_end()) {
      state->call->cancel();
    } else {
      wait(state);
    }
  });
}

}  // namespace karez
