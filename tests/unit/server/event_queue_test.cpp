#include "server/event_queue.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>

namespace karez {
namespace {

GenerationEvent text_event(std::string text) {
  GenerationEvent event;
  event.text = std::move(text);
  return event;
}

TEST(EventQueue, WakesOnceForAllThatWaits) {
  int wakes = 0;
  EventQueue queue(1 << 20, [&] { ++wakes; });
  queue.push(0, text_event("a"));
  queue.push(1, text_event("b"));
  EXPECT_EQ(wakes, 1);
  const auto items = queue.take();
  ASSERT_EQ(items.size(), 2U);
  EXPECT_EQ(items[1].prompt, 1);
  EXPECT_EQ(items[1].event.text, "b");
  EXPECT_TRUE(queue.take().empty());
  queue.push(0, text_event("c"));
  EXPECT_EQ(wakes, 2);
}

TEST(EventQueue, HoldsNoMoreThanItsBound) {
  EventQueue queue(10'000, [] {});
  for (int i = 0; i < 1000; ++i) {
    queue.push(0, text_event(std::string(1000, 'x')));
  }
  EXPECT_TRUE(queue.overflowed());
  EXPECT_LT(queue.take().size(), 11U);
}

TEST(EventQueue, IsSilentAfterItWasClosed) {
  int wakes = 0;
  EventQueue queue(1 << 20, [&] { ++wakes; });
  queue.close();
  queue.push(0, text_event("a"));
  EXPECT_EQ(wakes, 0);
  EXPECT_TRUE(queue.take().empty());
}

TEST(EventQueue, LosesNothingBetweenTwoThreads) {
  EventQueue queue(1 << 30, [] {});
  constexpr int kEvents = 20'000;
  std::thread writer([&queue] {
    for (int i = 0; i < kEvents; ++i) {
      queue.push(i, GenerationEvent());
    }
  });
  int next = 0;
  while (next < kEvents) {
    for (const auto& item : queue.take()) {
      ASSERT_EQ(item.prompt, next++);
    }
  }
  writer.join();
}

}  // namespace
}  // namespace karez
