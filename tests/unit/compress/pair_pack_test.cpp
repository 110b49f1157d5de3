#include "compress/pair_pack.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "attention/block_store.h"
#include "kv/block_layout.h"

namespace karez {
namespace {

constexpr KvType kTypes[] = {KvType::kF32, KvType::kBf16, KvType::kQ8_0};
constexpr int kSourceBlocks = 5;

std::size_t size_of(int value) { return static_cast<std::size_t>(value); }

class Slots {
 public:
  Slots(KvType type, int head_dim, int count, std::byte fill)
      : slot_bytes(BlockLayout::of(type, head_dim).slot_bytes),
        memory_(size_of(count) * slot_bytes, fill) {
    for (int i = 0; i < count; ++i) {
      all.push_back(memory_.data() + size_of(i) * slot_bytes);
    }
  }
  std::vector<const std::byte*> read() const { return {all.begin(), all.end()}; }

  std::size_t slot_bytes;
  std::vector<std::byte*> all;

 private:
  std::vector<std::byte> memory_;
};

std::vector<float> random_rows(int head_dim, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> rows(size_of(kSourceBlocks * kBlockSize * head_dim));
  std::ranges::generate(rows, [&] { return normal(random); });
  return rows;
}

// Row pairs[i] of rows becomes row i.
std::vector<float> picked(const std::vector<float>& rows, int head_dim,
                          const std::vector<std::int32_t>& pairs) {
  std::vector<float> out;
  for (const std::int32_t pair : pairs) {
    const float* row = rows.data() + pair * head_dim;
    out.insert(out.end(), row, row + head_dim);
  }
  return out;
}

void store(KvType type, int head_dim, const std::vector<float>& keys,
           const std::vector<float>& values, Slots& slots) {
  const std::size_t stride = size_of(head_dim);
  for (std::size_t b = 0; b < slots.all.size(); ++b) {
    const std::size_t at = b * kBlockSize * stride;
    store_in_block(type, head_dim, slots.all[b], 0, kBlockSize, {keys.data() + at, stride},
                   {values.data() + at, stride});
  }
}

const std::vector<std::vector<std::int32_t>>& choices() {
  static const std::vector<std::vector<std::int32_t>> kChoices = {
      {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},                       // as they are
      {16, 18, 20, 22, 24, 26, 28, 30, 32, 34, 36, 38, 40, 42, 44, 46},             // even ones
      {1, 3, 5, 7, 9, 11, 13, 15, 65, 67, 69, 71, 73, 75, 77, 79},                  // odd ones
      {0, 3, 4, 9, 15, 16, 17, 22, 31, 40, 47, 48, 60, 63, 64, 79},                 // mixed
      {79, 78, 1, 1, 0, 33, 34, 35, 2, 2, 2, 50, 49, 48, 16, 15},                   // any order
      {0,  2,  3,  5,  7,  11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 48, 49, 50,  // two blocks
       51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 67, 79},
  };
  return kChoices;
}

// Storing rounds each row by itself, so packed blocks are those that storing the picked rows gives.
TEST(PairPack, PackedBlocksHoldTheBitsOfTheirPairs) {
  for (const KvType type : kTypes) {
    for (const int head_dim : {32, 64, 80, 128}) {
      const std::vector<float> keys = random_rows(head_dim, 1);
      const std::vector<float> values = random_rows(head_dim, 2);
      Slots from(type, head_dim, kSourceBlocks, std::byte{0});
      store(type, head_dim, keys, values, from);
      for (const std::vector<std::int32_t>& pairs : choices()) {
        const int blocks = static_cast<int>(pairs.size()) / kBlockSize;
        Slots to(type, head_dim, blocks, std::byte{0x5a});
        pack_pairs(type, head_dim, from.read(), pairs, to.all);
        Slots expected(type, head_dim, blocks, std::byte{0x5a});
        store(type, head_dim, picked(keys, head_dim, pairs), picked(values, head_dim, pairs),
              expected);
        for (std::size_t b = 0; b < to.all.size(); ++b) {
          EXPECT_EQ(std::memcmp(to.all[b], expected.all[b], to.slot_bytes), 0)
              << to_string(type) << ", head dim " << head_dim << ", block " << b;
        }
      }
    }
  }
}

TEST(PairPack, BitsThatAreNoNumbersTravelToo) {
  constexpr int kDim = 32;
  const std::vector<std::int32_t>& pairs = choices()[3];
  for (const KvType type : kTypes) {
    Slots from(type, kDim, kSourceBlocks, std::byte{0xff});  // NaN
    Slots to(type, kDim, 1, std::byte{0});
    pack_pairs(type, kDim, from.read(), pairs, to.all);
    const BlockLayout layout = BlockLayout::of(type, kDim);
    const std::size_t used = type == KvType::kQ8_0
                                 ? layout.value_scales_offset + kBlockSize * sizeof(float)
                                 : 2 * layout.values_offset;
    EXPECT_EQ(std::memcmp(to.all[0], from.all[0], used), 0) << to_string(type);
  }
}

TEST(PairPack, PackingNothingWritesNothing) {
  Slots from(KvType::kBf16, 32, 1, std::byte{1});
  pack_pairs(KvType::kBf16, 32, from.read(), {}, {});
  float nothing = 3.0F;
  load_pairs(KvType::kBf16, 32, from.read(), {}, &nothing, &nothing);
  EXPECT_EQ(nothing, 3.0F);
}

TEST(PairPack, LoadedRowsAreTheStoredNumbers) {
  for (const KvType type : kTypes) {
    const int head_dim = 48;
    const std::vector<float> keys = random_rows(head_dim, 3);
    const std::vector<float> values = random_rows(head_dim, 4);
    Slots from(type, head_dim, kSourceBlocks, std::byte{0});
    store(type, head_dim, keys, values, from);
    std::vector<std::vector<std::int32_t>> all = choices();
    all.push_back({17});
    all.push_back({5, 70, 6});
    for (const std::vector<std::int32_t>& pairs : all) {
      std::vector<float> got_keys(pairs.size() * size_of(head_dim));
      std::vector<float> got_values(got_keys.size());
      load_pairs(type, head_dim, from.read(), pairs, got_keys.data(), got_values.data());
      const float tolerance = type == KvType::kF32 ? 0.0F : 0.02F;
      EXPECT_THAT(got_keys,
                  testing::Pointwise(testing::FloatNear(tolerance), picked(keys, head_dim, pairs)))
          << to_string(type);
      EXPECT_THAT(got_values, testing::Pointwise(testing::FloatNear(tolerance),
                                                 picked(values, head_dim, pairs)))
          << to_string(type);
    }
  }
}

}  // namespace
}  // namespace karez
