#include "engine/bench_variant.h"

#include <gtest/gtest.h>

#include <string>

namespace karez {
namespace {

TEST(BenchVariant, WhatIsWrittenIsReadAndNamedAgain) {
  for (const char* text : {"resident", "off", "off@26%", "previous", "previous,layer@30%",
                           "draft,probe,self@100%", "layer@0.5%", "layer@12.25%"}) {
    const auto variant = parse_bench_variant(text);
    ASSERT_TRUE(variant) << variant.error().to_string();
    EXPECT_EQ(variant->name(), text);
  }
}

TEST(BenchVariant, ResidentHasNoHomeAndTheOthersHaveTheirSourcesAndShare) {
  const BenchVariant resident = parse_bench_variant("resident").value();
  EXPECT_TRUE(resident.is_resident);
  EXPECT_FALSE(resident.share);
  const BenchVariant layer = parse_bench_variant("layer@30%").value();
  EXPECT_FALSE(layer.is_resident);
  EXPECT_TRUE(layer.sources.contains(LookaheadSource::kLayer));
  EXPECT_FALSE(layer.sources.contains(LookaheadSource::kPrevious));
  EXPECT_NEAR(layer.share.value(), 0.3, 1e-12);
  EXPECT_FALSE(parse_bench_variant("off").value().share);
  EXPECT_TRUE(parse_bench_variant("off").value().sources.is_empty());
}

TEST(BenchVariant, OtherTextsAreRefusedAndNamedWithWhatIsAllowed) {
  for (const char* text : {"layer@", "layer@30", "layer@%", "layer@0%", "layer@-3%", "layer@100.1%",
                           "layer@nan%", "layer@inf%", "layer@30%%", "layer@30%@40%", "layer@ 30%",
                           "layer@1e999%", "resident@30%"}) {
    const auto variant = parse_bench_variant(text);
    ASSERT_FALSE(variant) << text;
    EXPECT_EQ(variant.error().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(variant.error().message().find(std::string("'") + text + "'"), std::string::npos)
        << variant.error().message();
    EXPECT_NE(variant.error().message().find("layer@30%"), std::string::npos);
  }
  for (const char* text : {"", "fast", "layer,,off", "off,layer@30%", "@30%", "Resident"}) {
    const auto variant = parse_bench_variant(text);
    ASSERT_FALSE(variant) << text;
    EXPECT_EQ(variant.error().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(variant.error().message().find("previous, draft, probe, self, layer"),
              std::string::npos)
        << variant.error().message();
  }
}

}  // namespace
}  // namespace karez
