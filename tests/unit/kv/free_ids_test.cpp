#include "kv/free_ids.h"

#include <gtest/gtest.h>

#include <vector>

namespace karez {
namespace {

std::vector<std::uint32_t> take(FreeIds& ids, int count) {
  std::vector<std::uint32_t> taken;
  for (int i = 0; i < count; ++i) {
    taken.push_back(ids.take());
  }
  return taken;
}

TEST(FreeIds, HandsOutAllIdsInAscendingOrder) {
  for (const std::uint32_t size : {1U, 63U, 64U, 65U, 200U}) {
    FreeIds ids(size);
    for (std::uint32_t id = 0; id < size; ++id) {
      EXPECT_TRUE(ids.is_free(id));
      EXPECT_EQ(ids.take(), id);
      EXPECT_FALSE(ids.is_free(id));
    }
    EXPECT_EQ(ids.num_free(), 0);
    EXPECT_EQ(ids.size(), size);
  }
}

TEST(FreeIds, LowestIdsGivenBackComeFirst) {
  FreeIds ids(300);
  take(ids, 250);
  for (const std::uint32_t id : {200U, 3U, 70U}) {
    ids.give_back(id);
  }
  EXPECT_EQ(ids.num_free(), 53);
  EXPECT_EQ(take(ids, 5), (std::vector<std::uint32_t>{3, 70, 200, 250, 251}));
}

TEST(FreeIds, NeighboursGivenBackInAnyOrderAreNeighboursAgain) {
  FreeIds ids(10);
  take(ids, 10);
  for (const std::uint32_t id : {5U, 3U, 6U, 4U}) {
    ids.give_back(id);
  }
  EXPECT_EQ(take(ids, 4), (std::vector<std::uint32_t>{3, 4, 5, 6}));
}

TEST(FreeIds, AnEmptySetHasNoFreeId) {
  const FreeIds ids(0);
  EXPECT_EQ(ids.size(), 0);
  EXPECT_EQ(ids.num_free(), 0);
}

TEST(FreeIds, CostsOneBitAnId) { EXPECT_EQ(FreeIds(64'000).metadata_bytes(), 8'000U); }

TEST(FreeIdsDeathTest, MisuseIsABug) {
  FreeIds ids(1);
  EXPECT_DEATH(ids.give_back(0), "given back twice");
  EXPECT_DEATH(ids.give_back(1), "not one of this set");
  ids.take();
  EXPECT_DEATH(ids.take(), "no id is free");
}

TEST(FreeIds, GivesFourNeighboursThatBeginAtAMultipleOfFour) {
  FreeIds ids(75);
  take(ids, 5);
  EXPECT_EQ(ids.take_four(), 8) << "4 is taken";
  EXPECT_FALSE(ids.is_free(8));
  EXPECT_FALSE(ids.is_free(11));
  EXPECT_EQ(ids.num_free(), 66);
  EXPECT_EQ(ids.take(), 5U) << "single ones come from between";
  take(ids, 61);
  EXPECT_EQ(ids.take_four(), std::nullopt) << "71 to 74 are free, and begin at no multiple";
  ids.give_back(68);
  ids.give_back(70);
  EXPECT_EQ(ids.take_four(), std::nullopt) << "69 is not free";
  ids.give_back(69);
  EXPECT_EQ(ids.take_four(), 68);
  EXPECT_EQ(take(ids, 3), (std::vector<std::uint32_t>{72, 73, 74}));
}

}  // namespace
}  // namespace karez
