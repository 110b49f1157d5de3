#include "kv/block_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "base/bytes.h"
#include "base/system_memory.h"

namespace karez {
namespace {

using testing::HasSubstr;

BlockPool make_pool(std::size_t slot_bytes, std::int64_t cap_bytes) {
  auto pool = BlockPool::create(slot_bytes, cap_bytes);
  EXPECT_TRUE(pool.has_value());
  return std::move(*pool);
}

std::vector<SlotId> allocate(BlockPool& pool, std::size_t count) {
  std::vector<SlotId> slots(count);
  EXPECT_TRUE(pool.allocate(slots));
  return slots;
}

TEST(BlockPool, HoldsAsManyWholeSlotsAsTheCapAllows) {
  for (const std::int64_t cap : {4096, 4097, 8191, 8192, 100'000}) {
    const BlockPool pool = make_pool(4096, cap);
    EXPECT_EQ(pool.num_slots(), cap / 4096);
    EXPECT_EQ(pool.capacity_bytes(), cap / 4096 * 4096);
    EXPECT_LE(pool.capacity_bytes(), cap);
    EXPECT_EQ(pool.num_free(), pool.num_slots());
    EXPECT_EQ(pool.num_held(), 0);
  }
}

TEST(BlockPool, FreshPoolHandsOutAscendingNeighbours) {
  BlockPool pool = make_pool(128, 128 * 10);
  const std::vector<SlotId> slots = allocate(pool, 10);
  for (std::uint32_t i = 0; i < 10; ++i) {
    EXPECT_EQ(slots[i], SlotId(i));
    EXPECT_EQ(pool.data(slots[i]), pool.base() + 128 * i);
    EXPECT_TRUE(pool.is_held(slots[i]));
  }
}

TEST(BlockPool, AllocateTakesAllOrNothing) {
  BlockPool pool = make_pool(64, 64 * 4);
  allocate(pool, 3);
  std::vector<SlotId> two(2, SlotId(77));
  EXPECT_FALSE(pool.allocate(two));
  EXPECT_EQ(two, std::vector<SlotId>(2, SlotId(77)));
  EXPECT_EQ(pool.num_free(), 1);
  EXPECT_EQ(allocate(pool, 1), std::vector<SlotId>{SlotId(3)});
  EXPECT_FALSE(pool.allocate(std::span(two).first(1)));
  EXPECT_TRUE(pool.allocate({}));
}

TEST(BlockPool, ReleasedSlotsAreHandedOutAgain) {
  BlockPool pool = make_pool(64, 64 * 4);
  allocate(pool, 4);
  pool.release(SlotId(2));
  pool.release(SlotId(1));
  EXPECT_FALSE(pool.is_held(SlotId(1)));
  EXPECT_EQ(pool.num_held(), 2);
  EXPECT_EQ(allocate(pool, 2), (std::vector<SlotId>{SlotId(1), SlotId(2)}));
}

TEST(BlockPool, SlotsAreAlignedToCacheLinesAndDoNotOverlap) {
  BlockPool pool = make_pool(192, 192 * 5);
  const std::vector<SlotId> slots = allocate(pool, 5);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pool.data(slots[i])) % 64, 0U);
    std::fill_n(pool.data(slots[i]), 192, static_cast<std::byte>(i + 1));
  }
  for (std::size_t i = 0; i < slots.size(); ++i) {
    EXPECT_EQ(pool.data(slots[i])[0], static_cast<std::byte>(i + 1));
    EXPECT_EQ(pool.data(slots[i])[191], static_cast<std::byte>(i + 1));
  }
}

TEST(BlockPool, ACapBelowOneSlotIsRefusedWithTheFigureNeeded) {
  for (const std::int64_t cap : {std::int64_t{0}, std::int64_t{4095}, std::int64_t{-1},
                                 std::numeric_limits<std::int64_t>::min()}) {
    const auto pool = BlockPool::create(4096, cap);
    ASSERT_FALSE(pool.has_value()) << cap;
    EXPECT_EQ(pool.error().code(), StatusCode::kResourceExhausted);
    EXPECT_THAT(pool.error().message(), HasSubstr(std::to_string(cap)));
    EXPECT_THAT(pool.error().message(), HasSubstr("4096"));
  }
}

TEST(BlockPool, ACapAboveTheMachinesMemoryIsRefused) {
  const std::int64_t cap = memory_limit_bytes() + 65536;
  const auto pool = BlockPool::create(65536, cap);
  ASSERT_FALSE(pool.has_value());
  EXPECT_EQ(pool.error().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(pool.error().message(), HasSubstr("the KV cap is " + format_bytes(cap)));
  EXPECT_THAT(pool.error().message(), HasSubstr(format_bytes(memory_limit_bytes())));
}

TEST(BlockPool, ACapWithMoreSlotsThanIdsIsRefused) {
  const auto pool = BlockPool::create(64, std::numeric_limits<std::int64_t>::max());
  ASSERT_FALSE(pool.has_value());
  EXPECT_EQ(pool.error().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(pool.error().message(), HasSubstr("9223372036854775807 bytes"));
  EXPECT_THAT(pool.error().message(), HasSubstr("at most 4294967295 slots"));
}

TEST(BlockPoolDeathTest, MisuseIsABug) {
  EXPECT_DEATH(static_cast<void>(BlockPool::create(100, 1000)), "whole cache lines");
  BlockPool pool = make_pool(64, 64 * 2);
  EXPECT_DEATH(pool.release(SlotId(0)), "given back twice");
  EXPECT_DEATH(pool.release(SlotId::none()), "not one of this set");
}

}  // namespace
}  // namespace karez
