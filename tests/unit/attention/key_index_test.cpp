#include "attention/key_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "attention/key_rotation.h"
#include "kv/block_layout.h"

namespace karez {
namespace key_index_test {

constexpr int kDim = 64;

std::vector<float> normal_numbers(int count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(static_cast<std::size_t>(count));
  for (float& x : out) {
    x = normal(random);
  }
  return out;
}

float bf16_at(const std::byte* p, int index) {
  std::uint16_t half;
  std::memcpy(&half, p + std::ptrdiff_t{2} * index, sizeof half);
  const std::uint32_t word = std::uint32_t{half} << 16;
  float out;
  std::memcpy(&out, &word, sizeof out);
  return out;
}

std::uint32_t word_at(const std::byte* p, int index) {
  std::uint32_t out;
  std::memcpy(&out, p + std::ptrdiff_t{4} * index, sizeof out);
  return out;
}

// Coordinate i of token t as the header's layout says it is coded.
float coded_value(KeyIndexKind kind, int dim, const std::byte* record, int t, int i) {
  const KeyIndexLayout layout = KeyIndexLayout::of(kind, dim);
  const int g = i / 16;
  const int s = i % 16 / 4;
  const int j = i % 4;
  std::uint32_t code = word_at(record, g * 16 + t) >> (2 * s + 8 * j) & 3U;
  if (kind == KeyIndexKind::kR3) {
    const std::uint32_t high = word_at(record + layout.high_bits_offset, g / 2 * 16 + t);
    code |= (high >> (4 * (g % 2) + s + 8 * j) & 1U) << 2;
  }
  return bf16_at(record + layout.scales_offset, t) * (static_cast<float>(code) - code_offset(kind));
}

std::vector<std::byte> coded(KeyIndexKind kind, int dim, const std::vector<float>& keys,
                             const float* centre = nullptr) {
  std::vector<std::byte> record(key_index_block_bytes(kind, dim), std::byte{0xa5});
  const auto stride = static_cast<std::size_t>(dim);
  index_tokens(kind, dim, record.data(), 0, static_cast<int>(keys.size() / stride),
               {keys.data(), stride}, centre);
  return record;
}

TEST(KeyIndex, TakesAtMostSevenAndAHalfPercentOfTheKeysAndValues) {
  EXPECT_EQ(key_index_block_bytes(KeyIndexKind::kR2, 64), 18U * kBlockSize);
  EXPECT_EQ(key_index_block_bytes(KeyIndexKind::kR3, 64), 26U * kBlockSize);
  EXPECT_EQ(key_index_block_bytes(KeyIndexKind::kMinMax, 64), 16U * kBlockSize);
  EXPECT_EQ(key_index_block_bytes(KeyIndexKind::kMean, 64), 8U * kBlockSize);
  for (const int dim : {64, 80, 128, 256}) {
    EXPECT_LE(static_cast<double>(key_index_block_bytes(KeyIndexKind::kR2, dim)),
              0.075 * static_cast<double>(BlockLayout::of(KvType::kBf16, dim).slot_bytes));
  }
}

TEST(KeyIndex, NamesOfKindsAreReadBack) {
  for (const KeyIndexKind kind :
       {KeyIndexKind::kR2, KeyIndexKind::kR3, KeyIndexKind::kMinMax, KeyIndexKind::kMean}) {
    EXPECT_EQ(parse_key_index_kind(to_string(kind)).value(), kind);
  }
  EXPECT_THAT(parse_key_index_kind("r4").error().message(), testing::HasSubstr("r2, r3"));
}

TEST(KeyIndex, CodesComeAsNearAsTheirBitsAllow) {
  // Of a Gaussian, a uniform step leaves 11.9 % of the energy in 2 bits and 3.7 % in 3.
  for (const auto& [kind, most] : {std::pair{KeyIndexKind::kR2, 0.14}, {KeyIndexKind::kR3, 0.05}}) {
    for (const int dim : {16, 64, 80, 112, 128, 256}) {
      const std::vector<float> keys = normal_numbers(kBlockSize * dim, 5);
      const std::vector<std::byte> record = coded(kind, dim, keys);
      double error = 0.0;
      double energy = 0.0;
      for (int t = 0; t < kBlockSize; ++t) {
        std::vector<float> x(keys.begin() + t * dim, keys.begin() + (t + 1) * dim);
        rotate_key(x);
        for (int i = 0; i < dim; ++i) {
          const auto value = static_cast<double>(x[static_cast<std::size_t>(i)]);
          const double miss =
              value - static_cast<double>(coded_value(kind, dim, record.data(), t, i));
          error += miss * miss;
          energy += value * value;
        }
      }
      EXPECT_LT(error / energy, most) << to_string(kind) << " " << dim;
    }
  }
}

TEST(KeyIndex, TheCentreIsSubtracted) {
  const std::vector<float> keys = normal_numbers(kBlockSize * kDim, 6);
  const std::vector<float> centre = normal_numbers(kDim, 7);
  std::vector<float> shifted = keys;
  for (std::size_t i = 0; i < shifted.size(); ++i) {
    shifted[i] -= centre[i % kDim];
  }
  EXPECT_EQ(coded(KeyIndexKind::kR2, kDim, keys, centre.data()),
            coded(KeyIndexKind::kR2, kDim, shifted));
}

TEST(KeyIndex, TokensCodedOneByOneEqualTokensCodedTogether) {
  for (const KeyIndexKind kind : {KeyIndexKind::kR2, KeyIndexKind::kR3}) {
    for (const int dim : {64, 80}) {
      const std::vector<float> keys = normal_numbers(kBlockSize * dim, 8);
      const std::vector<std::byte> together = coded(kind, dim, keys);
      std::vector<std::byte> apart(together.size(), std::byte{0x3c});
      for (int t = kBlockSize - 1; t >= 0; --t) {
        index_tokens(kind, dim, apart.data(), t, 1,
                     {keys.data() + t * dim, static_cast<std::size_t>(dim)}, nullptr);
      }
      EXPECT_EQ(apart, together);
    }
  }
}

TEST(KeyIndex, KeysThatAreNotFiniteGetScaleZero) {
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    std::vector<float> keys = normal_numbers(2 * kDim, 9);
    keys[3] = bad;
    for (const KeyIndexKind kind : {KeyIndexKind::kR2, KeyIndexKind::kR3}) {
      const std::vector<std::byte> record = coded(kind, kDim, keys);
      const std::byte* scales = record.data() + KeyIndexLayout::of(kind, kDim).scales_offset;
      EXPECT_EQ(bf16_at(scales, 0), 0.0F);
      EXPECT_GT(bf16_at(scales, 1), 0.0F);
    }
  }
  const std::vector<std::byte> zeros =
      coded(KeyIndexKind::kR2, kDim, std::vector<float>(kDim, 0.0F));
  EXPECT_EQ(bf16_at(zeros.data() + KeyIndexLayout::of(KeyIndexKind::kR2, kDim).scales_offset, 0),
            0.0F);
}

TEST(KeyIndex, SummariesAreThoseOfTheStoredKeys) {
  const std::vector<float> keys = normal_numbers(kBlockSize * kDim, 10);
  for (const KvType type : {KvType::kF32, KvType::kBf16, KvType::kQ8_0}) {
    std::vector<std::byte> slot(BlockLayout::of(type, kDim).slot_bytes);
    store_in_block(type, kDim, slot.data(), 0, kBlockSize, {keys.data(), kDim},
                   {keys.data(), kDim});
    std::vector<std::byte> min_max(key_index_block_bytes(KeyIndexKind::kMinMax, kDim));
    std::vector<std::byte> mean(key_index_block_bytes(KeyIndexKind::kMean, kDim));
    index_block(KeyIndexKind::kMinMax, kDim, min_max.data(), type, slot.data());
    index_block(KeyIndexKind::kMean, kDim, mean.data(), type, slot.data());
    for (int i = 0; i < kDim; ++i) {
      float least = INFINITY;
      float largest = -INFINITY;
      float sum = 0.0F;
      for (int t = 0; t < kBlockSize; ++t) {
        const float key = keys[static_cast<std::size_t>(t * kDim + i)];
        least = std::min(least, key);
        largest = std::max(largest, key);
        sum += key;
      }
      EXPECT_NEAR(bf16_at(min_max.data(), i), least, 0.02F);
      EXPECT_NEAR(bf16_at(min_max.data(), kDim + i), largest, 0.02F);
      EXPECT_NEAR(bf16_at(mean.data(), i), sum / kBlockSize, 0.02F);
    }
  }
}

TEST(KeyIndex, CoarseRecordsAreTheMeanKeyCodedAsATokenOfR2) {
  for (const int dim : {16, 64, 80, 256}) {
    const auto size = static_cast<std::size_t>(dim);
    const std::vector<float> keys = normal_numbers(kBlockSize * dim, 11);
    const std::vector<float> centre = normal_numbers(dim, 12);
    std::vector<float> mean(size, 0.0F);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      mean[i % size] += keys[i];
    }
    for (float& x : mean) {
      x /= kBlockSize;
    }
    std::vector<std::byte> slot(BlockLayout::of(KvType::kF32, dim).slot_bytes);
    store_in_block(KvType::kF32, dim, slot.data(), 0, kBlockSize, {keys.data(), size},
                   {keys.data(), size});
    std::vector<std::byte> coarse(coarse_record_bytes(dim));
    index_mean(dim, coarse.data(), KvType::kF32, slot.data(), centre.data());

    std::vector<std::byte> record(key_index_block_bytes(KeyIndexKind::kR2, dim));
    index_tokens(KeyIndexKind::kR2, dim, record.data(), 5, 1, {mean.data(), size}, centre.data());
    const std::size_t num_groups = size / 16;
    for (std::size_t g = 0; g < num_groups; ++g) {
      EXPECT_EQ(std::memcmp(&coarse[4 * g], &record[64 * g + 4 * 5], 4), 0) << dim << " " << g;
    }
    EXPECT_EQ(std::memcmp(&coarse[4 * num_groups], &record[64 * num_groups + 2 * 5], 2), 0);
  }
}

KVCacheSpec two_group_spec() {
  KVCacheSpec spec;
  spec.num_layers = 3;
  spec.num_kv_heads = 2;
  spec.head_dim = kDim;
  spec.layer_windows = {32, 0, 0};
  return spec;
}

std::vector<BlockIdRange> ranges_of_40_slots(const KVCacheSpec& spec) {
  const auto cap = 40 * static_cast<std::int64_t>(spec.slot_bytes());
  return block_id_ranges(*KVCacheManager::create(spec, cap).value());
}

TEST(KeyIndex, OnlyLayersWithoutAWindowHaveOne) {
  const KVCacheSpec spec = two_group_spec();
  const KeyIndex index =
      KeyIndex::create(spec, KeyIndexKind::kR2, ranges_of_40_slots(spec)).value();
  EXPECT_TRUE(index.view(0).is_none());
  EXPECT_FALSE(index.view(1).is_none());
  // 40 slots are 20 blocks of the first group and 10 of the second, whose ids follow.
  EXPECT_EQ(index.bytes(), 2U * 2U * 10U * 288U);
  EXPECT_EQ(index.view(1).record(1, BlockId(20)) - index.view(1).record(0, BlockId(20)), 10 * 288);
  EXPECT_EQ(index.view(2).record(0, BlockId(29)) - index.view(1).record(0, BlockId(20)), 29 * 288);
}

TEST(KeyIndex, CopyingABlockCopiesItsRecordsOfAllLayersAndHeads) {
  const KVCacheSpec spec = two_group_spec();
  KeyIndex index = KeyIndex::create(spec, KeyIndexKind::kR2, ranges_of_40_slots(spec)).value();
  int fill = 1;
  for (const int layer : {1, 2}) {
    for (const int head : {0, 1}) {
      std::memset(index.view(layer).record(head, BlockId(22)), fill++, 288);
    }
  }
  index.copy_block(BlockId(22), BlockId(27));
  index.copy_block(BlockId(3), BlockId(4));  // of the group with a window: nothing to copy
  fill = 1;
  for (const int layer : {1, 2}) {
    for (const int head : {0, 1}) {
      const std::byte* record = index.view(layer).record(head, BlockId(27));
      EXPECT_EQ(record[0], std::byte(fill));
      EXPECT_EQ(record[287], std::byte(fill));
      EXPECT_EQ(index.view(layer).record(head, BlockId(26))[287], std::byte{0});
      ++fill;
    }
  }
}

TEST(KeyIndex, CoarseRecordsAreThereForLongContextsOnlyAndCopiedWithTheirBlock) {
  const KVCacheSpec spec = two_group_spec();
  const auto ranges = ranges_of_40_slots(spec);  // 10 blocks in the layers with an index
  EXPECT_FALSE(KeyIndex::create(spec, KeyIndexKind::kR2, ranges, {}, 10)->view(1).has_coarse());
  EXPECT_FALSE(KeyIndex::create(spec, KeyIndexKind::kMean, ranges, {}, 9)->view(1).has_coarse());
  KeyIndex index = KeyIndex::create(spec, KeyIndexKind::kR2, ranges, {}, 9).value();
  EXPECT_TRUE(index.view(0).is_none());
  EXPECT_EQ(index.bytes(), 2U * 2U * 10U * (288U + 18U));
  for (const int layer : {1, 2}) {
    for (const int head : {0, 1}) {
      std::memset(index.view(layer).record(head, BlockId(22)), 10 * layer + head, 288);
      std::memset(index.view(layer).coarse_record(head, BlockId(22)), 30 * layer + head, 18);
    }
  }
  index.copy_block(BlockId(22), BlockId(29));
  for (const int layer : {1, 2}) {
    for (const int head : {0, 1}) {
      const KeyIndexView view = index.view(layer);
      EXPECT_EQ(view.record(head, BlockId(29))[287], std::byte(10 * layer + head));
      EXPECT_EQ(view.coarse_record(head, BlockId(29))[0], std::byte(30 * layer + head));
      EXPECT_EQ(view.coarse_record(head, BlockId(29))[17], std::byte(30 * layer + head));
      EXPECT_EQ(view.coarse_record(head, BlockId(28))[17], std::byte{0});
    }
  }
}

TEST(KeyIndex, CoarseRecordsAreThereWhereATableOfPagesCanBeLongWithFewIds) {
  const KVCacheSpec spec = two_group_spec();
  const auto ranges = ranges_of_40_slots(spec);  // 10 blocks in the layers with an index
  const auto has_coarse = [&](KeyIndexKind kind, int two_level_blocks, int pages) {
    return KeyIndex::create(spec, kind, ranges, {}, two_level_blocks, pages)->view(1).has_coarse();
  };
  EXPECT_TRUE(has_coarse(KeyIndexKind::kR2, 20, 3));
  EXPECT_TRUE(has_coarse(KeyIndexKind::kR3, 29, 3));
  EXPECT_FALSE(has_coarse(KeyIndexKind::kR2, 30, 3));
  EXPECT_FALSE(has_coarse(KeyIndexKind::kR2, 20, 2));
  EXPECT_FALSE(has_coarse(KeyIndexKind::kMean, 20, 3));
}

TEST(KeyIndex, PagesHaveRecordsOfTheirOwnOnRequestThatAreCopiedWithTheirBlock) {
  const KVCacheSpec spec = two_group_spec();
  const auto ranges = ranges_of_40_slots(spec);
  EXPECT_FALSE(KeyIndex::create(spec, KeyIndexKind::kR2, ranges)->view(1).has_pages());
  const KeyIndex plain = KeyIndex::create(spec, KeyIndexKind::kR2, ranges, {}, 30, 3).value();
  EXPECT_EQ(plain.bytes(), 2U * 2U * 10U * 4U * 288U);
  EXPECT_TRUE(plain.view(1).has_pages());
  EXPECT_FALSE(plain.view(0).has_pages());
  KeyIndex index = KeyIndex::create(spec, KeyIndexKind::kR2, ranges, {}, 9, 3).value();
  EXPECT_EQ(index.bytes(), 2U * 2U * 10U * 4U * (288U + 18U));
  const auto fill_of = [](int layer, int head, int page) {
    return 60 * (layer - 1) + 20 * head + 3 * page + 1;
  };
  for (const int layer : {1, 2}) {
    for (const int head : {0, 1}) {
      const KeyIndexView view = index.view(layer);
      std::memset(view.record(head, BlockId(22)), 250, 288);
      std::memset(view.coarse_record(head, BlockId(22)), 251, 18);
      for (const int page : {0, 1, 2}) {
        const int fill = fill_of(layer, head, page);
        std::memset(view.page_record(head, BlockId(22), page), fill, 288);
        std::memset(view.coarse_page_record(head, BlockId(22), page), fill + 1, 18);
      }
    }
  }
  index.copy_block(BlockId(22), BlockId(29));
  for (const int layer : {1, 2}) {
    for (const int head : {0, 1}) {
      const KeyIndexView view = index.view(layer);
      EXPECT_EQ(view.record(head, BlockId(22))[287], std::byte{250});
      EXPECT_EQ(view.coarse_record(head, BlockId(29))[17], std::byte{251});
      for (const int page : {0, 1, 2}) {
        const int fill = fill_of(layer, head, page);
        EXPECT_EQ(view.page_record(head, BlockId(29), page)[0], std::byte(fill));
        EXPECT_EQ(view.page_record(head, BlockId(29), page)[287], std::byte(fill));
        EXPECT_EQ(view.coarse_page_record(head, BlockId(29), page)[0], std::byte(fill + 1));
        EXPECT_EQ(view.coarse_page_record(head, BlockId(29), page)[17], std::byte(fill + 1));
        EXPECT_EQ(view.page_record(head, BlockId(28), page)[287], std::byte{0});
      }
    }
  }
}

TEST(KeyIndex, AStoredBlockGetsTheRecordsThatItsStoredKeysHadAsRows) {
  KVCacheSpec spec = two_group_spec();
  const auto ranges = ranges_of_40_slots(spec);
  const std::vector<float> centres(std::size_t{3} * 2 * kDim, 0.25F);
  std::vector<float> keys(std::size_t{kBlockSize} * kDim);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    keys[i] = std::sin(static_cast<float>(i));
  }
  std::vector<std::byte> slot(BlockLayout::of(KvType::kBf16, kDim).slot_bytes);
  store_in_block(KvType::kBf16, kDim, slot.data(), 0, kBlockSize, {keys.data(), kDim},
                 {keys.data(), kDim});
  load_block_keys(KvType::kBf16, kDim, slot.data(), keys.data());
  for (const KeyIndexKind kind :
       {KeyIndexKind::kR2, KeyIndexKind::kR3, KeyIndexKind::kMinMax, KeyIndexKind::kMean}) {
    KeyIndex index = KeyIndex::create(spec, kind, ranges, centres, 0).value();
    const KeyIndexView view = index.view(2);
    index_stored_block(view, 1, BlockId(23), kDim, KvType::kBf16, slot.data());
    std::vector<std::byte> record(key_index_block_bytes(kind, kDim));
    std::vector<std::byte> coarse(coarse_record_bytes(kDim));
    if (codes_tokens(kind)) {
      index_tokens(kind, kDim, record.data(), 0, kBlockSize, {keys.data(), kDim},
                   view.centre(1, kDim));
      index_mean(kDim, coarse.data(), KvType::kBf16, slot.data(), view.centre(1, kDim));
      EXPECT_EQ(std::memcmp(view.coarse_record(1, BlockId(23)), coarse.data(), coarse.size()), 0);
    } else {
      index_block(kind, kDim, record.data(), KvType::kBf16, slot.data());
    }
    EXPECT_EQ(std::memcmp(view.record(1, BlockId(23)), record.data(), record.size()), 0);
  }
}

TEST(KeyIndex, CreateChecksTheCentres) {
  const KVCacheSpec spec = two_group_spec();
  auto created =
      KeyIndex::create(spec, KeyIndexKind::kR2, ranges_of_40_slots(spec), std::vector<float>(7));
  ASSERT_FALSE(created.has_value());
  EXPECT_THAT(created.error().message(), testing::HasSubstr("7"));
  const KeyIndex index = KeyIndex::create(spec, KeyIndexKind::kR2, ranges_of_40_slots(spec),
                                          std::vector<float>(std::size_t{3} * 2 * kDim, 1.5F))
                             .value();
  EXPECT_EQ(index.view(2).centres()[2 * kDim - 1], 1.5F);
}

}  // namespace key_index_test
}  // namespace karez
