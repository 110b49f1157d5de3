#include "attention/query_ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/bf16.h"

namespace karez {
namespace query_ring_test {

constexpr int kDim = 16;
constexpr int kCapacity = 32;

// `value` in every coordinate of the head whose turn it is, something else in the other two.
void record(QueryRing& ring, int layer, int kv_head, int position, float value) {
  std::vector<float> queries(3 * kDim, -1.0F);
  const auto head = static_cast<std::ptrdiff_t>(QueryRing::head_of(position, 3));
  std::fill_n(queries.begin() + head * kDim, kDim, value);
  ring.record(layer, kv_head, position, queries.data(), 3);
}

float recorded(const QueryRing& ring, int layer, int kv_head, int position) {
  const std::uint16_t* query = ring.query(layer, kv_head, position);
  for (int i = 1; i < kDim; ++i) {
    EXPECT_EQ(query[i], query[0]);
  }
  return from_bf16(query[0]);
}

TEST(QueryRing, KeepsOneHeadOfEveryFourthPosition) {
  EXPECT_TRUE(QueryRing::keeps(0));
  EXPECT_FALSE(QueryRing::keeps(3));
  EXPECT_TRUE(QueryRing::keeps(8));
  QueryRing ring({0, 1}, 2, kDim, kCapacity);
  float value = 1.0F;
  for (const int layer : {0, 1}) {
    for (const int head : {0, 1}) {
      for (int position = 0; position < kCapacity; position += 4) {
        record(ring, layer, head, position, value++);
      }
    }
  }
  value = 1.0F;
  for (const int layer : {0, 1}) {
    for (const int head : {0, 1}) {
      for (int position = 0; position < kCapacity; position += 4) {
        EXPECT_EQ(recorded(ring, layer, head, position), value++);
      }
    }
  }
}

TEST(QueryRing, HeadsTakeTurnsAndAreRoundedToBf16) {
  QueryRing ring({0}, 1, kDim, kCapacity);
  std::vector<float> queries(2 * kDim, 1.0F);
  std::fill(queries.begin() + kDim, queries.end(), 1.0F + 3.0F / 256.0F);
  for (const int position : {0, 4, 8}) {
    ring.record(0, 0, position, queries.data(), 2);
  }
  EXPECT_EQ(recorded(ring, 0, 0, 0), 1.0F);
  EXPECT_EQ(recorded(ring, 0, 0, 4), 1.0F + 2.0F / 128.0F);
  EXPECT_EQ(recorded(ring, 0, 0, 8), 1.0F);
}

TEST(QueryRing, AnOlderPositionIsOverwrittenByTheOneThatTakesItsPlace) {
  QueryRing ring({0}, 1, kDim, kCapacity);
  for (int position = 0; position < 3 * kCapacity; position += 4) {
    record(ring, 0, 0, position, static_cast<float>(position));
    for (int kept = std::max(0, position - kCapacity + 4); kept <= position; kept += 4) {
      EXPECT_EQ(recorded(ring, 0, 0, kept), static_cast<float>(kept));
    }
  }
}

TEST(QueryRing, TheLastRecordOfAPositionCounts) {
  QueryRing ring({0}, 1, kDim, kCapacity);
  record(ring, 0, 0, 40, 1.0F);
  record(ring, 0, 0, 44, 2.0F);
  record(ring, 0, 0, 40, 3.0F);
  EXPECT_EQ(recorded(ring, 0, 0, 40), 3.0F);
  EXPECT_EQ(recorded(ring, 0, 0, 44), 2.0F);
}

TEST(QueryRing, LayersWithoutAPlaceTakeNoMemoryAndRecordNothing) {
  QueryRing ring({-1, 0, -1, 1}, 2, kDim, kCapacity);
  EXPECT_EQ(ring.bytes(), 2U * 2U * (kCapacity / 4) * kDim * sizeof(std::uint16_t));
  record(ring, 1, 1, 8, 5.0F);
  record(ring, 0, 1, 8, 6.0F);
  record(ring, 2, 1, 8, 7.0F);
  EXPECT_EQ(recorded(ring, 1, 1, 8), 5.0F);
  EXPECT_EQ(recorded(ring, 3, 1, 8), 0.0F);
  EXPECT_EQ(QueryRing({-1, -1}, 2, kDim, kCapacity).bytes(), 0U);
  EXPECT_EQ(ring.capacity_tokens(), kCapacity);
}

}  // namespace query_ring_test
}  // namespace karez
