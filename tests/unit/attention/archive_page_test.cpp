#include "attention/archive_page.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "attention/kernel_table.h"
#include "attention/key_rotation.h"
#include "base/bf16.h"

namespace karez {
namespace {

constexpr int kDims[] = {16, 48, 64, 80, 112, 128, 256, 512};

struct Pairs {
  std::vector<float> keys;
  std::vector<float> values;
};

// Keys with some large coordinates, as models have them.
Pairs random_pairs(int dim, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Pairs out;
  for (int i = 0; i < kBlockSize * dim; ++i) {
    out.keys.push_back(normal(random) * (i % dim % 31 == 0 ? 9.0F : 1.0F));
    out.values.push_back(0.1F * normal(random));
  }
  return out;
}

std::vector<std::byte> written(int dim, const Pairs& pairs) {
  std::vector<std::byte> page(ArchiveLayout::of(dim).page_bytes, std::byte{0xa5});
  const auto stride = static_cast<std::size_t>(dim);
  write_archive_page(dim, page.data(), {pairs.keys.data(), stride}, {pairs.values.data(), stride});
  return page;
}

Pairs decoded(int dim, const std::vector<std::byte>& page) {
  Pairs out = random_pairs(dim, 99);
  decode_archive_page(dim, page.data(), out.keys.data(), out.values.data());
  return out;
}

double squared(const std::vector<float>& x) {
  double sum = 0.0;
  for (const float number : x) {
    sum += static_cast<double>(number) * static_cast<double>(number);
  }
  return sum;
}

std::vector<float> minus(std::vector<float> a, const std::vector<float>& b) {
  std::ranges::transform(a, b, a.begin(), std::minus<>());
  return a;
}

TEST(ArchivePage, AQuarterOfTheBytesAndAsManyInASlotAsFit) {
  EXPECT_EQ(ArchiveLayout::of(64).page_bytes, 1088U);
  EXPECT_EQ(pages_per_block(KvType::kBf16, 64), 3);
  EXPECT_EQ(pages_per_block(KvType::kQ8_0, 64), 2);
  EXPECT_EQ(pages_per_block(KvType::kF32, 64), 7);
  for (const int dim : kDims) {
    EXPECT_EQ(ArchiveLayout::of(dim).page_bytes % 64, 0U);
    for (const KvType type : {KvType::kF32, KvType::kBf16, KvType::kQ8_0}) {
      ASSERT_GE(pages_per_block(type, dim), 1);
      EXPECT_LE(archive_page_offset(dim, pages_per_block(type, dim)),
                BlockLayout::of(type, dim).slot_bytes);
    }
  }
}

TEST(ArchivePage, GivesBackKeysAndValuesWithOneHundredthOfTheirSquare) {
  for (const int dim : kDims) {
    const Pairs pairs = random_pairs(dim, 1);
    const Pairs out = decoded(dim, written(dim, pairs));
    EXPECT_LT(squared(minus(out.keys, pairs.keys)), 0.014 * squared(pairs.keys)) << dim;
    EXPECT_LT(squared(minus(out.values, pairs.values)), 0.014 * squared(pairs.values)) << dim;
    EXPECT_GT(squared(minus(out.values, pairs.values)), 0.005 * squared(pairs.values)) << dim;
  }
}

TEST(ArchivePage, DotProductsHaveNoBiasAndAnErrorOfATenthOfTheirSpread) {
  constexpr int kDim = 64;
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  double error = 0.0;
  double bias = 0.0;
  double spread = 0.0;
  for (unsigned seed = 0; seed < 50; ++seed) {
    const Pairs pairs = random_pairs(kDim, seed);
    const Pairs out = decoded(kDim, written(kDim, pairs));
    std::vector<float> query(std::size_t{kDim});
    std::ranges::generate(query, [&] { return normal(random); });
    for (int t = 0; t < kBlockSize; ++t) {
      const auto dot = [&](const std::vector<float>& keys) {
        double sum = 0.0;
        for (int i = 0; i < kDim; ++i) {
          sum += static_cast<double>(query[static_cast<std::size_t>(i)]) *
                 static_cast<double>(keys[static_cast<std::size_t>(t * kDim + i)]);
        }
        return sum;
      };
      const double is = dot(out.keys);
      const double was = dot(pairs.keys);
      error += (is - was) * (is - was);
      bias += is - was;
      spread += was * was;
    }
  }
  EXPECT_LT(error, 0.014 * spread);
  EXPECT_GT(error, 0.005 * spread);
  EXPECT_LT(std::fabs(bias) / 800.0, 3.0 * std::sqrt(error / 800.0 / 800.0));
}

TEST(ArchivePage, HalvesAreDecodedApartAndAPageKeepsToItsBytes) {
  constexpr int kDim = 80;
  const Pairs pairs = random_pairs(kDim, 3);
  const std::vector<std::byte> page = written(kDim, pairs);
  const Pairs both = decoded(kDim, page);
  std::vector<float> keys(pairs.keys.size());
  std::vector<float> values(pairs.keys.size());
  decode_archive_page(kDim, page.data(), keys.data(), nullptr);
  decode_archive_page(kDim, page.data(), nullptr, values.data());
  EXPECT_EQ(keys, both.keys);
  EXPECT_EQ(values, both.values);
  const std::size_t bytes = ArchiveLayout::of(kDim).page_bytes;
  std::vector<std::byte> slot(3 * bytes, std::byte{0x3c});
  write_archive_page(kDim, slot.data() + bytes, {pairs.keys.data(), kDim},
                     {pairs.values.data(), kDim});
  EXPECT_EQ(std::memcmp(slot.data() + bytes, page.data(), bytes), 0);
  EXPECT_TRUE(std::all_of(slot.begin(), slot.begin() + static_cast<std::ptrdiff_t>(bytes),
                          [](std::byte b) { return b == std::byte{0x3c}; }));
  EXPECT_TRUE(std::all_of(slot.begin() + static_cast<std::ptrdiff_t>(2 * bytes), slot.end(),
                          [](std::byte b) { return b == std::byte{0x3c}; }));
}

TEST(ArchivePage, ATokenHasTheSameCodesWhateverElseIsInItsPage) {
  constexpr int kDim = 64;
  const Pairs pairs = random_pairs(kDim, 1);
  const Pairs whole = decoded(kDim, written(kDim, pairs));
  Pairs other = random_pairs(kDim, 2);
  std::copy_n(&pairs.keys[5 * kDim], kDim, &other.keys[9 * kDim]);
  const Pairs moved = decoded(kDim, written(kDim, other));
  EXPECT_TRUE(std::equal(&whole.keys[5 * kDim], &whole.keys[6 * kDim], &moved.keys[9 * kDim]));
}

TEST(ArchivePage, WhatIsNotFiniteOrZeroOrTinyBecomesZero) {
  constexpr int kDim = 32;
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Pairs pairs = random_pairs(kDim, 4);
  pairs.keys[3] = nan;
  pairs.keys[kDim + 7] = -inf;
  std::fill_n(&pairs.keys[2 * kDim], kDim, 0.0F);
  std::fill_n(&pairs.keys[3 * kDim], kDim, 1e-42F);
  std::fill_n(&pairs.keys[4 * kDim], kDim, 3.0e38F);  // its square is not finite
  pairs.values[5 * kDim] = nan;
  const Pairs out = decoded(kDim, written(kDim, pairs));
  for (int i = 0; i < 5 * kDim; ++i) {
    EXPECT_EQ(out.keys[static_cast<std::size_t>(i)], 0.0F);
  }
  for (int i = 5 * kDim; i < 6 * kDim; ++i) {
    EXPECT_EQ(out.values[static_cast<std::size_t>(i)], 0.0F);
  }
  for (const std::vector<float>& half : {out.keys, out.values}) {
    EXPECT_TRUE(std::ranges::all_of(half, [](float x) { return std::isfinite(x); }));
    EXPECT_NE(half[6 * kDim], 0.0F);
  }
}

TEST(ArchivePage, CodesAreTheNearestLevelsOfTheStoredScale) {
  constexpr int kDim = 128;
  const Pairs pairs = random_pairs(kDim, 8);
  const std::vector<std::byte> page = written(kDim, pairs);
  const Pairs out = decoded(kDim, page);
  for (int t = 0; t < kBlockSize; ++t) {
    std::vector<float> was(&pairs.keys[static_cast<std::size_t>(t * kDim)],
                           &pairs.keys[static_cast<std::size_t>(t * kDim)] + kDim);
    std::vector<float> is(&out.keys[static_cast<std::size_t>(t * kDim)],
                          &out.keys[static_cast<std::size_t>(t * kDim)] + kDim);
    rotate_key(was);
    rotate_key(is);
    std::uint16_t stored;
    std::memcpy(&stored, page.data() + ArchiveLayout::of(kDim).key_scales_offset + 2 * t, 2);
    const float scale = from_bf16(stored);
    for (std::size_t i = 0; i < was.size(); ++i) {
      const float level = std::clamp(std::floor(was[i] / scale) + 0.5F, -7.5F, 7.5F);
      EXPECT_NEAR(is[i] / scale, level, 1e-3F);
    }
  }
}

}  // namespace
}  // namespace karez
