#include "kv/kv_types.h"

#include <gtest/gtest.h>

namespace karez {
namespace {

TEST(KvType, NamesAreReadBack) {
  for (const KvType type : {KvType::kF32, KvType::kBf16, KvType::kQ8_0}) {
    const auto parsed = parse_kv_type(to_string(type));
    ASSERT_TRUE(parsed.has_value()) << to_string(type);
    EXPECT_EQ(*parsed, type);
  }
  EXPECT_EQ(to_string(KvType::kF32), "f32");
  EXPECT_EQ(to_string(KvType::kBf16), "bf16");
  EXPECT_EQ(to_string(KvType::kQ8_0), "q8_0");
}

TEST(KvType, UnknownNamesAreRefusedWithTheList) {
  for (const char* name : {"", "f16", "BF16", "q8_0 "}) {
    const auto parsed = parse_kv_type(name);
    ASSERT_FALSE(parsed.has_value()) << name;
    EXPECT_EQ(parsed.error().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(parsed.error().message(),
              "the KV type is '" + std::string(name) + "', allowed are f32, bf16, q8_0");
  }
}

}  // namespace
}  // namespace karez
