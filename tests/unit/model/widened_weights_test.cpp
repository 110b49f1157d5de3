#include "model/widened_weights.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace karez {
namespace {

constexpr std::size_t kQ5Bytes = 22;
constexpr std::size_t kQ8Bytes = 34;
constexpr int kElements = 32;

unsigned byte_at(const std::byte* block, std::size_t offset) {
  return std::to_integer<unsigned>(block[offset]);
}

// The 5-bit code of element i of a q5_0 block: four low bits behind a bit of the word after the
// scale.
int code_of(const std::byte* block, int i) {
  const unsigned pair = byte_at(block, 6 + static_cast<std::size_t>(i % 16));
  const unsigned low = i < 16 ? pair & 15U : pair >> 4U;
  const unsigned high = byte_at(block, 2 + static_cast<std::size_t>(i / 8)) >> (i % 8) & 1U;
  return static_cast<int>(low + 16U * high);
}

TEST(WidenedWeights, HoldTheSameScaleAndTheCodesMinus16) {
  constexpr std::size_t kBlocks = 100;
  std::mt19937 random(1);
  std::vector<std::byte> narrow(kBlocks * kQ5Bytes);
  for (std::byte& byte : narrow) {
    byte = static_cast<std::byte>(random());  // any bytes are blocks
  }
  std::vector<std::byte> wide(kBlocks * kQ8Bytes);
  widen(kGgufQ5_0, narrow, kBlocks * kElements, wide.data());
  for (std::size_t b = 0; b < kBlocks; ++b) {
    const std::byte* from = narrow.data() + b * kQ5Bytes;
    const std::byte* to = wide.data() + b * kQ8Bytes;
    EXPECT_EQ(std::memcmp(from, to, 2), 0);
    for (int i = 0; i < kElements; ++i) {
      const auto value = static_cast<std::int8_t>(byte_at(to, 2 + static_cast<std::size_t>(i)));
      ASSERT_EQ(value, code_of(from, i) - 16) << "block " << b << ", element " << i;
    }
  }
}

TEST(WidenedWeights, MostTypesHaveNoWiderOne) {
  EXPECT_EQ(widened_type(kGgufQ5_0), kGgufQ8_0);
  EXPECT_EQ(widened_type(7), std::nullopt);
  EXPECT_EQ(widened_type(kGgufQ8_0), std::nullopt);
}

}  // namespace
}  // namespace karez
