#include "model/widened_weights.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace karez {
namespace {

TEST(WidenedWeights, HoldTheSameNumbers) {
  constexpr std::int64_t kElements = 32 * 50;
  // Any bytes are q5_0 blocks; scales are kept finite.
  std::mt19937 random(1);
  std::vector<std::byte> narrow(ggml_row_size(GGML_TYPE_Q5_0, kElements));
  for (std::byte& byte : narrow) {
    byte = static_cast<std::byte>(random());
  }
  for (std::size_t scale = 0; scale < narrow.size(); scale += 22) {
    narrow[scale + 1] &= std::byte{0xBF};
  }
  std::vector<std::byte> wide(ggml_row_size(GGML_TYPE_Q8_0, kElements));
  widen(GGML_TYPE_Q5_0, narrow, kElements, wide.data());

  std::vector<float> expected(kElements);
  std::vector<float> values(kElements);
  ggml_get_type_traits(GGML_TYPE_Q5_0)->to_float(narrow.data(), expected.data(), kElements);
  ggml_get_type_traits(GGML_TYPE_Q8_0)->to_float(wide.data(), values.data(), kElements);
  EXPECT_EQ(values, expected);
}

TEST(WidenedWeights, MostTypesHaveNoWiderOne) {
  EXPECT_EQ(widened_type(GGML_TYPE_Q5_0), GGML_TYPE_Q8_0);
  EXPECT_EQ(widened_type(GGML_TYPE_Q5_1), std::nullopt);
  EXPECT_EQ(widened_type(GGML_TYPE_Q8_0), std::nullopt);
}

}  // namespace
}  // namespace karez
