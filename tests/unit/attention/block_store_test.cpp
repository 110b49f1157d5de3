#include "attention/block_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <vector>

#include "kv/block_layout.h"
#include "support/reference_attention.h"

namespace karez {
namespace block_store_test {

constexpr int kDim = 32;

struct Block {
  explicit Block(KvType type)
      : layout(BlockLayout::of(type, kDim)), bytes(layout.slot_bytes, std::byte{0x7f}) {}
  template <class T>
  T at(std::size_t offset, std::size_t index) const {
    T out;
    std::memcpy(&out, bytes.data() + offset + index * sizeof(T), sizeof(T));
    return out;
  }
  BlockLayout layout;
  std::vector<std::byte> bytes;
};

std::vector<float> rows(float first) {
  std::vector<float> out;
  for (int i = 0; i < kBlockSize * kDim; ++i) {
    out.push_back(std::sin(first + static_cast<float>(i)) * 3.0F);
  }
  return out;
}

float from_bf16(std::uint16_t bits) {
  const std::uint32_t word = std::uint32_t{bits} << 16;
  float out;
  std::memcpy(&out, &word, sizeof out);
  return out;
}

TEST(BlockStore, F32TokensLieWhereTheLayoutSays) {
  Block block(KvType::kF32);
  const auto keys = rows(1);
  const auto values = rows(2);
  store_in_block(KvType::kF32, kDim, block.bytes.data(), 3, 5, {keys.data(), kDim},
                 {values.data(), kDim});
  for (int t = 0; t < 5; ++t) {
    for (int i = 0; i < kDim; ++i) {
      const auto from = static_cast<std::size_t>(t * kDim + i);
      EXPECT_EQ(
          block.at<float>(block.layout.keys_offset, BlockLayout::key_index(KvType::kF32, 3 + t, i)),
          keys[from]);
      EXPECT_EQ(block.at<float>(block.layout.values_offset,
                                BlockLayout::value_index(KvType::kF32, kDim, 3 + t, i)),
                values[from]);
    }
  }
}

TEST(BlockStore, Bf16RoundsToNearestEven) {
  Block block(KvType::kBf16);
  const auto keys = rows(3);
  const auto values = rows(4);
  store_in_block(KvType::kBf16, kDim, block.bytes.data(), 0, kBlockSize, {keys.data(), kDim},
                 {values.data(), kDim});
  for (int t = 0; t < kBlockSize; ++t) {
    for (int i = 0; i < kDim; ++i) {
      const auto from = static_cast<std::size_t>(t * kDim + i);
      EXPECT_EQ(from_bf16(block.at<std::uint16_t>(block.layout.keys_offset,
                                                  BlockLayout::key_index(KvType::kBf16, t, i))),
                test::through_bf16(keys[from]));
      EXPECT_EQ(
          from_bf16(block.at<std::uint16_t>(block.layout.values_offset,
                                            BlockLayout::value_index(KvType::kBf16, kDim, t, i))),
          test::through_bf16(values[from]));
    }
  }
}

TEST(BlockStore, Bf16KeepsNotANumber) {
  Block block(KvType::kBf16);
  const std::vector<float> nans(kDim, std::nanf(""));
  store_in_block(KvType::kBf16, kDim, block.bytes.data(), 0, 1, {nans.data(), kDim},
                 {nans.data(), kDim});
  EXPECT_TRUE(std::isnan(from_bf16(block.at<std::uint16_t>(block.layout.keys_offset, 0))));
}

TEST(BlockStore, Q8NotANumberBecomesZero) {
  Block block(KvType::kQ8_0);
  std::vector<float> numbers(kDim, 2.0F);
  numbers[1] = std::nanf("");
  numbers[2] = -2.0F;
  store_in_block(KvType::kQ8_0, kDim, block.bytes.data(), 0, 1, {numbers.data(), kDim},
                 {numbers.data(), kDim});
  const auto key = [&](int i) {
    return block.at<std::int8_t>(block.layout.keys_offset,
                                 BlockLayout::key_index(KvType::kQ8_0, 0, i));
  };
  EXPECT_EQ(key(0), 127);
  EXPECT_EQ(key(1), 0);
  EXPECT_EQ(key(2), -127);
}

TEST(BlockStore, Q8KeepsEachTokensOwnScale) {
  Block block(KvType::kQ8_0);
  auto keys = rows(5);
  for (int i = 0; i < kDim; ++i) {
    keys[static_cast<std::size_t>(kDim + i)] *= 100.0F;   // token 1
    keys[static_cast<std::size_t>(2 * kDim + i)] = 0.0F;  // token 2
  }
  store_in_block(KvType::kQ8_0, kDim, block.bytes.data(), 0, 3, {keys.data(), kDim},
                 {keys.data(), kDim});
  for (int t = 0; t < 3; ++t) {
    const std::span<const float> token(&keys[static_cast<std::size_t>(t * kDim)], kDim);
    const std::vector<float> expected = test::through_q8_0(token);
    const auto scale_at = static_cast<std::size_t>(t);
    for (int i = 0; i < kDim; ++i) {
      const auto key = block.at<std::int8_t>(block.layout.keys_offset,
                                             BlockLayout::key_index(KvType::kQ8_0, t, i));
      const auto value = block.at<std::int8_t>(block.layout.values_offset,
                                               BlockLayout::value_index(KvType::kQ8_0, kDim, t, i));
      const float largest = t == 1 ? 300.0F : 3.0F;
      EXPECT_NEAR(key * block.at<float>(block.layout.key_scales_offset, scale_at),
                  expected[static_cast<std::size_t>(i)], largest * 1e-6F);
      EXPECT_NEAR(value * block.at<float>(block.layout.value_scales_offset, scale_at),
                  expected[static_cast<std::size_t>(i)], largest * 1e-6F);
    }
  }
}

TEST(BlockStore, ARunThatStartsABlockClearsTheValuesBehindIt) {
  for (const KvType type : {KvType::kF32, KvType::kBf16, KvType::kQ8_0}) {
    Block block(type);
    const auto numbers = rows(6);
    store_in_block(type, kDim, block.bytes.data(), 0, 4, {numbers.data(), kDim},
                   {numbers.data(), kDim});
    const std::size_t size = kv_element_bytes(type);
    for (int i = 0; i < kDim; ++i) {
      const std::size_t at =
          block.layout.values_offset + BlockLayout::value_index(type, kDim, 4, i) * size;
      for (std::size_t byte = 0; byte < size; ++byte) {
        EXPECT_EQ(block.bytes[at + byte], std::byte{0});
      }
    }
  }
}

TEST(BlockStore, ALaterRunLeavesItsNeighboursAlone) {
  for (const KvType type : {KvType::kF32, KvType::kBf16, KvType::kQ8_0}) {
    Block together(type);
    Block apart(type);
    const auto numbers = rows(7);
    const auto store = [&](Block& block, int first, int count) {
      const TokenRows from{&numbers[static_cast<std::size_t>(first * kDim)], kDim};
      store_in_block(type, kDim, block.bytes.data(), first, count, from, from);
    };
    store(together, 0, kBlockSize);
    store(apart, 0, 1);
    store(apart, 1, 6);
    store(apart, 7, 9);
    EXPECT_EQ(together.bytes, apart.bytes);
  }
}

TEST(BlockStore, KeysAndValuesAreReadBackAsStored) {
  const auto keys = rows(8);
  const auto values = rows(9);
  for (const KvType type : {KvType::kF32, KvType::kBf16, KvType::kQ8_0}) {
    Block block(type);
    store_in_block(type, kDim, block.bytes.data(), 0, kBlockSize, {keys.data(), kDim},
                   {values.data(), kDim});
    std::vector<float> read_keys(keys.size());
    std::vector<float> read_values(values.size());
    load_block_keys(type, kDim, block.bytes.data(), read_keys.data());
    load_block_values(type, kDim, block.bytes.data(), read_values.data());
    for (int t = 0; t < kBlockSize; ++t) {
      const auto at = static_cast<std::size_t>(t * kDim);
      const auto expected = [&](const std::vector<float>& from) {
        const std::span<const float> row(&from[at], kDim);
        std::vector<float> out(row.begin(), row.end());
        if (type == KvType::kBf16) {
          std::ranges::transform(out, out.begin(), test::through_bf16);
        }
        return type == KvType::kQ8_0 ? test::through_q8_0(row) : out;
      };
      for (std::size_t i = 0; i < kDim; ++i) {
        const float tolerance = type == KvType::kQ8_0 ? 3e-6F : 0.0F;
        EXPECT_NEAR(read_keys[at + i], expected(keys)[i], tolerance);
        EXPECT_NEAR(read_values[at + i], expected(values)[i], tolerance);
      }
    }
  }
}

}  // namespace block_store_test
}  // namespace karez
