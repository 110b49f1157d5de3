#include "engine/bench_peer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace karez {
namespace {

TEST(PeerSettings, AreReadAsTheyAreWritten) {
  PeerSettings settings;
  settings.flash_attention = true;
  settings.cache_type_k = "q8_0";
  settings.cache_type_v = "bf16";
  settings.step_tokens = 2048;
  const auto parsed = parse_peer_settings(settings.to_string());
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(parsed->to_string(), "fa=on,k=q8_0,v=bf16,ub=2048");
  EXPECT_EQ(parsed->kv_type(), "q8_0/bf16");
}

TEST(PeerSettings, MissingPartsAreTheDefaults) {
  const auto parsed = parse_peer_settings("k=q8_0");
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(parsed->to_string(), "fa=off,k=q8_0,v=f16,ub=512");
}

TEST(PeerSettings, AWrongPartIsNamed) {
  for (const char* text :
       {"", "fa=maybe", "fa", "k=", "ub=0", "ub=12x", "ub=99999999999", "x=1", "fa=on,,k=f16"}) {
    const auto parsed = parse_peer_settings(text);
    ASSERT_FALSE(parsed.has_value()) << text;
    EXPECT_EQ(parsed.error().code(), StatusCode::kInvalidArgument);
  }
  EXPECT_THAT(parse_peer_settings("fa=on,q=3").error().message(), testing::HasSubstr("'q=3'"));
}

}  // namespace
}  // namespace karez
