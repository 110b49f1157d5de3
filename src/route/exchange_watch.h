// Looks, while a request waits for a node, whether waiting still makes sense; ends the call if not.
//
// Thread: everything on the executor's thread, which is one.
#pragma once

#include <functional>
#include <memory>

#include "route/node_call.h"
#include "server/asio.h"

namespace karez {

class ExchangeWatch {
 public:
  // must_end: asked ten times a second; true: the call is cancelled. Both must outlive the watch.
  ExchangeWatch(asio::any_io_executor executor, NodeCall& call, std::function<bool()> must_end);
  ~ExchangeWatch();
  ExchangeWatch(const ExchangeWatch&) = delete;
  ExchangeWatch& operator=(const ExchangeWatch&) = delete;

 private:
  struct State;
  static void wait(const std::shared_ptr<State>& state);
  std::shared_ptr<State> state_;
};

}  // namespace karez
