#include "server/event_queue.h"

#include <utility>

namespace karez {
namespace {

std::size_t bytes_of(const GenerationEvent& event) {
  std::size_t bytes = sizeof(EventQueue::Item) + event.text.size();
  for (const GeneratedToken& token : event.tokens) {
    bytes += sizeof(GeneratedToken) + token.chosen.bytes.size() +
             token.alternatives.size() * (sizeof(TokenLogprob) + 16);
  }
  return bytes;
}

}  // namespace

void EventQueue::push(int prompt, const GenerationEvent& event) {
  const std::lock_guard lock(mutex_);
  if (closed_ || overflowed_) {
    return;
  }
  bytes_ += bytes_of(event);
  overflowed_ = bytes_ > max_bytes_;
  const bool was_empty = items_.empty();
  items_.push_back({prompt, event});
  // Inside the lock, so that close() can promise that no wake comes after it.
  if (was_empty || overflowed_) {
    wake_();
  }
}

std::vector<EventQueue::Item> EventQueue::take() {
  const std::lock_guard lock(mutex_);
  bytes_ = 0;
  return std::exchange(items_, {});
}

bool EventQueue::overflowed() const {
  const std::lock_guard lock(mutex_);
  return overflowed_ && !closed_;
}

void EventQueue::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  // It may hold things of the connection's thread, which end before the engine does.
  wake_ = nullptr;
  items_.clear();
}

}  // namespace karez
