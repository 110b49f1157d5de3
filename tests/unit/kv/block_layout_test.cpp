#include "kv/block_layout.h"

#include <gtest/gtest.h>

#include <set>

namespace karez {
namespace {

constexpr KvType kTypes[] = {KvType::kF32, KvType::kBf16, KvType::kQ8_0};

TEST(BlockLayout, SlotsHaveTheDocumentedSizes) {
  EXPECT_EQ(BlockLayout::of(KvType::kBf16, 64).slot_bytes, 4096U);
  EXPECT_EQ(BlockLayout::of(KvType::kBf16, 128).slot_bytes, 8192U);
  EXPECT_EQ(BlockLayout::of(KvType::kF32, 64).slot_bytes, 8192U);
  EXPECT_EQ(BlockLayout::of(KvType::kQ8_0, 64).slot_bytes, 2048U + 128U);
}

TEST(BlockLayout, PartsLieBehindEachOtherInsideTheSlot) {
  for (const KvType type : kTypes) {
    for (int head_dim = 16; head_dim <= 512; head_dim += 16) {
      const BlockLayout layout = BlockLayout::of(type, head_dim);
      const std::size_t half =
          static_cast<std::size_t>(head_dim) * kBlockSize * kv_element_bytes(type);
      EXPECT_EQ(layout.slot_bytes % 64, 0U);
      EXPECT_EQ(layout.values_offset, layout.keys_offset + half);
      EXPECT_EQ(layout.key_scales_offset, layout.values_offset + half);
      EXPECT_GE(layout.slot_bytes, layout.value_scales_offset);
      if (type == KvType::kQ8_0) {
        EXPECT_EQ(layout.value_scales_offset, layout.key_scales_offset + 64);
        EXPECT_GE(layout.slot_bytes, layout.value_scales_offset + 64);
      }
    }
  }
}

TEST(BlockLayout, EveryNumberHasAPlaceOfItsOwn) {
  for (const KvType type : kTypes) {
    for (const int head_dim : {16, 64, 80, 512}) {
      std::set<std::size_t> keys;
      std::set<std::size_t> values;
      for (int t = 0; t < kBlockSize; ++t) {
        for (int i = 0; i < head_dim; ++i) {
          keys.insert(BlockLayout::key_index(type, t, i));
          values.insert(BlockLayout::value_index(type, head_dim, t, i));
        }
      }
      const auto count = static_cast<std::size_t>(head_dim) * kBlockSize;
      EXPECT_EQ(keys.size(), count);
      EXPECT_EQ(*keys.rbegin(), count - 1);
      EXPECT_EQ(values.size(), count);
      EXPECT_EQ(*values.rbegin(), count - 1);
    }
  }
}

TEST(BlockLayout, KeysPairCoordinatesAndValuesPairTokens) {
  EXPECT_EQ(BlockLayout::key_index(KvType::kF32, 3, 5), 5U * 16 + 3);
  EXPECT_EQ(BlockLayout::value_index(KvType::kF32, 64, 3, 5), 3U * 64 + 5);
  for (const KvType type : {KvType::kBf16, KvType::kQ8_0}) {
    EXPECT_EQ(BlockLayout::key_index(type, 3, 5), (2U * 16 + 3) * 2 + 1);
    EXPECT_EQ(BlockLayout::value_index(type, 64, 3, 5), (1U * 64 + 5) * 2 + 1);
  }
}

}  // namespace
}  // namespace karez
