#include "base/cpu_features.h"

#include <gtest/gtest.h>

#include <set>

namespace karez {
namespace {

TEST(CpuFeatures, SupportedLevelsRunFromPortableToTheDetectedOne) {
  const auto levels = supported_cpu_levels();
  ASSERT_FALSE(levels.empty());
  EXPECT_EQ(levels.front(), CpuLevel::kPortable);
  EXPECT_EQ(levels.back(), detected_cpu_level());
  for (std::size_t i = 1; i < levels.size(); ++i) {
    EXPECT_EQ(static_cast<int>(levels[i]), static_cast<int>(levels[i - 1]) + 1);
  }
}

TEST(CpuFeatures, EveryLevelHasANameOfItsOwn) {
  std::set<std::string_view> names;
  for (int level = 0; level <= static_cast<int>(CpuLevel::kAmxBf16); ++level) {
    names.insert(to_string(static_cast<CpuLevel>(level)));
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(CpuLevel::kAmxBf16) + 1);
  EXPECT_FALSE(names.contains("unknown"));
}

#if defined(__x86_64__)
TEST(CpuFeatures, DetectionAgreesWithTheCompilersOwn) {
  EXPECT_EQ(detected_cpu_level() >= CpuLevel::kAvx2,
            __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
  if (detected_cpu_level() >= CpuLevel::kAvx512Bf16) {
    EXPECT_TRUE(__builtin_cpu_supports("avx512bf16"));
  }
}
#endif

}  // namespace
}  // namespace karez
