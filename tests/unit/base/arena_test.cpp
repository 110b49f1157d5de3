#include "base/arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "base/bytes.h"
#include "base/system_memory.h"

namespace karez {
namespace {

TEST(Arena, IsZeroAndStartsAtAHugePage) {
  auto arena = Arena::create(5'000'001);
  ASSERT_TRUE(arena.has_value());
  const auto bytes = arena->bytes();
  EXPECT_EQ(bytes.size(), 5'000'001U);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(bytes.data()) % (2U << 20U), 0U);
  EXPECT_TRUE(
      std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; }));
}

TEST(Arena, EveryByteCanBeWritten) {
  auto arena = Arena::create(3 * kMiB + 17);
  ASSERT_TRUE(arena.has_value());
  std::ranges::fill(arena->bytes(), std::byte{0xAB});
  EXPECT_EQ(arena->bytes().front(), std::byte{0xAB});
  EXPECT_EQ(arena->bytes().back(), std::byte{0xAB});
}

TEST(Arena, RefusesMoreThanTheMachineHas) {
  for (const std::size_t bytes : {static_cast<std::size_t>(memory_limit_bytes()) + 1,
                                  std::numeric_limits<std::size_t>::max()}) {
    const auto arena = Arena::create(bytes);
    ASSERT_FALSE(arena.has_value()) << bytes;
    EXPECT_EQ(arena.error().code(), StatusCode::kResourceExhausted);
    EXPECT_THAT(arena.error().message(), testing::HasSubstr(std::to_string(bytes)));
    EXPECT_THAT(arena.error().message(), testing::HasSubstr(std::to_string(memory_limit_bytes())));
  }
}

TEST(Arena, MovesKeepTheBytesInPlace) {
  auto first = Arena::create(kMiB);
  auto second = Arena::create(2 * kMiB);
  ASSERT_TRUE(first.has_value() && second.has_value());
  std::byte* const data = first->bytes().data();
  data[7] = std::byte{42};
  Arena moved(std::move(*first));
  EXPECT_EQ(moved.bytes().data(), data);
  *second = std::move(moved);
  EXPECT_EQ(second->bytes().data(), data);
  EXPECT_EQ(second->bytes().size(), static_cast<std::size_t>(kMiB));
  EXPECT_EQ(second->bytes()[7], std::byte{42});
}

TEST(ArenaDeathTest, AnEmptyArenaIsABug) {
  EXPECT_DEATH(static_cast<void>(Arena::create(0)), "at least one byte");
}

}  // namespace
}  // namespace karez
