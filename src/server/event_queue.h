// Events on their way from the engine thread to the connection that writes them, with a bound.
//
// The engine must never wait for a client, and a client that reads slowly must not make the server
// grow: when more than max_bytes wait to be taken, the queue drops what comes and says so.
// Thread: push() from the engine thread; take() and close() from the connection's thread.
#pragma once

#include <cstddef>
#include <functional>
#include <mutex>
#include <vector>

#include "engine/engine_client.h"

namespace karez {

class EventQueue {
 public:
  struct Item {
    int prompt = 0;  // which engine request of the HTTP request
    GenerationEvent event;
  };

  // wake: called from push() when something waits and no wake is pending, and when the bound is
  // reached; it must return at once.
  EventQueue(std::size_t max_bytes, std::function<void()> wake)
      : max_bytes_(max_bytes), wake_(std::move(wake)) {}

  void push(int prompt, const GenerationEvent& event);
  std::vector<Item> take();
  // False again after close().
  bool overflowed() const;
  // Nobody takes any more: push() does nothing from now on, and wake is not called after this.
  void close();

 private:
  mutable std::mutex mutex_;
  const std::size_t max_bytes_;
  std::function<void()> wake_;
  std::vector<Item> items_;
  std::size_t bytes_ = 0;
  bool overflowed_ = false;
  bool closed_ = false;
};

}  // namespace karez
