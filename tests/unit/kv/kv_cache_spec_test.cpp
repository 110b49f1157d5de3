#include "kv/kv_cache_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace karez {
namespace {

using testing::ElementsAre;

KVCacheSpec small_spec() {
  KVCacheSpec spec;
  spec.num_layers = 4;
  spec.num_kv_heads = 3;
  spec.head_dim = 64;
  return spec;
}

// The definition of slots_for_sequence(), step by step and block by block.
std::int64_t peak_slots(const KVCacheSpec& spec, int num_tokens, int step_tokens) {
  std::int64_t peak = 0;
  for (int begin = 0; begin < num_tokens; begin += step_tokens) {
    const int end = std::min(begin + step_tokens, num_tokens);
    std::int64_t slots = 0;
    for (int layer = 0; layer < spec.num_layers; ++layer) {
      const int window =
          spec.layer_windows.empty() ? 0 : spec.layer_windows[static_cast<std::size_t>(layer)];
      for (int first = 0; first < end; first += kBlockSize) {
        const bool unread = window > 0 && first + kBlockSize - 1 <= begin - window;
        slots += unread ? 0 : spec.num_kv_heads;
      }
    }
    peak = std::max(peak, slots);
  }
  return peak;
}

// The definition: blocks that the step writes in all layers, and those before them in one.
TEST(KVCacheSpec, TheMostTokensOfAStepFitBesideOneLayer) {
  const KVCacheSpec spec = small_spec();
  for (int before = 0; before < 100; before += 7) {
    for (int slots = 0; slots < 120; ++slots) {
      const auto fits = [&](std::int64_t num_tokens) {
        const std::int64_t old_blocks = before / kBlockSize;
        const std::int64_t blocks = (before + num_tokens + kBlockSize - 1) / kBlockSize;
        return spec.num_kv_heads * (old_blocks + spec.num_layers * (blocks - old_blocks)) <= slots;
      };
      const std::int64_t most = spec.most_step_tokens(before, before, slots);
      ASSERT_TRUE(most == 0 || fits(most)) << before << " " << slots;
      ASSERT_FALSE(fits(most + 1)) << before << " " << slots;
    }
  }
  EXPECT_EQ(spec.most_step_tokens(1000, 32, 18), 8) << "its rows read two blocks";
}

TEST(KVCacheSpec, LayersThatAllHaveAWindowReadNoMoreThanThat) {
  KVCacheSpec spec = small_spec();
  spec.layer_windows = {32, 16, 32, 16};
  EXPECT_EQ(spec.most_step_tokens(100'000, 100'000, 21), 16);
  spec.layer_windows[3] = 0;
  EXPECT_EQ(spec.most_step_tokens(100'000, 100'000, 21), 0);
}

TEST(KVCacheSpec, LayersWithAWindowReadItHoweverLittleTheOthersRead) {
  KVCacheSpec spec = small_spec();
  spec.layer_windows = {0, 64, 0, 64};
  const std::int64_t slots =
      3 * 5 + 4 * 3;  // a window and the block that it begins in; a new block
  EXPECT_EQ(spec.most_step_tokens(1000, 32, slots), 8);
  EXPECT_EQ(spec.most_step_tokens(1000, 32, slots - 1), 0);
  EXPECT_EQ(spec.most_step_tokens(1000, 96, slots), 0);
}

TEST(KVCacheSpec, AcceptsTheEndsOfEveryRange) {
  KVCacheSpec spec = small_spec();
  EXPECT_TRUE(spec.validate().has_value());
  spec.num_layers = 1;
  spec.num_kv_heads = 1;
  spec.head_dim = 16;
  spec.layer_windows = {std::numeric_limits<int>::max()};
  EXPECT_TRUE(spec.validate().has_value());
  spec.num_layers = 1024;
  spec.num_kv_heads = 1024;
  spec.head_dim = 512;
  spec.layer_windows = {};
  EXPECT_TRUE(spec.validate().has_value());
}

TEST(KVCacheSpec, RefusalsNameTheFieldTheValueAndTheRange) {
  struct Case {
    std::function<void(KVCacheSpec&)> change;
    std::string message;
  };
  const std::vector<Case> cases = {
      {[](auto& s) { s.num_layers = 0; }, "num_layers is 0, allowed are 1 to 1024"},
      {[](auto& s) { s.num_layers = 1025; }, "num_layers is 1025, allowed are 1 to 1024"},
      {[](auto& s) { s.num_kv_heads = -2; }, "num_kv_heads is -2, allowed are 1 to 1024"},
      {[](auto& s) { s.num_kv_heads = 2'000'000'000; },
       "num_kv_heads is 2000000000, allowed are 1 to 1024"},
      {[](auto& s) { s.head_dim = 0; },
       "head_dim is 0, allowed are multiples of 16 from 16 to 512"},
      {[](auto& s) { s.head_dim = 72; },
       "head_dim is 72, allowed are multiples of 16 from 16 to 512"},
      {[](auto& s) { s.head_dim = 528; },
       "head_dim is 528, allowed are multiples of 16 from 16 to 512"},
      {[](auto& s) {
         s.layer_windows = {0, 0};
       },
       "layer_windows has 2 entries, allowed are none or one for each of the 4 layers"},
      {[](auto& s) {
         s.layer_windows = {0, 8, -1, 8};
       },
       "layer_windows[2] is -1, allowed are 0 (all tokens) and more"},
      {[](auto& s) {
         s.num_layers = 9;
         s.layer_windows = {0, 1, 2, 3, 4, 5, 6, 7, 8};
       },
       "layer_windows has 9 different windows, allowed are at most 8"},
  };
  for (const Case& c : cases) {
    KVCacheSpec spec = small_spec();
    c.change(spec);
    const auto result = spec.validate();
    ASSERT_FALSE(result.has_value()) << c.message;
    EXPECT_EQ(result.error().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(result.error().message(), c.message);
  }
}

TEST(KVCacheSpec, WithoutWindowsAllLayersAreOneGroup) {
  const auto groups = small_spec().layer_groups();
  ASSERT_EQ(groups.size(), 1U);
  EXPECT_EQ(groups[0].window, 0);
  EXPECT_THAT(groups[0].layers, ElementsAre(0, 1, 2, 3));
}

TEST(KVCacheSpec, LayersWithTheSameWindowAreOneGroup) {
  KVCacheSpec spec = small_spec();
  spec.layer_windows = {512, 0, 512, 0};
  const auto groups = spec.layer_groups();
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].window, 512);
  EXPECT_THAT(groups[0].layers, ElementsAre(0, 2));
  EXPECT_EQ(groups[1].window, 0);
  EXPECT_THAT(groups[1].layers, ElementsAre(1, 3));
}

TEST(KVCacheSpec, ATokenOfALongSequenceCostsItsFullAttentionLayers) {
  KVCacheSpec spec = small_spec();
  EXPECT_EQ(spec.slot_bytes(), 4096U);
  EXPECT_EQ(spec.bytes_per_token(), 4U * 3 * 64 * 2 * 2);
  spec.layer_windows = {512, 0, 512, 512};
  EXPECT_EQ(spec.bytes_per_token(), 1U * 3 * 64 * 2 * 2);
  spec.layer_windows = {512, 512, 512, 512};
  EXPECT_EQ(spec.bytes_per_token(), 0U);
  spec.layer_windows = {};
  spec.type = KvType::kQ8_0;
  EXPECT_EQ(spec.bytes_per_token(), 4U * 3 * (64 * 2 + 2 * 4));
}

TEST(KVCacheSpec, SlotsForSequenceIsTheExactPeakOfItsSteps) {
  KVCacheSpec spec = small_spec();
  for (const std::vector<int>& windows :
       std::vector<std::vector<int>>{{}, {40, 0, 40, 40}, {1, 17, 33, 0}, {16, 5, 5, 5}}) {
    spec.layer_windows = windows;
    for (const int step : {1, 2, 3, 8, 15, 16, 17, 24, 48, 100, 1000}) {
      for (int tokens = 0; tokens < 220; ++tokens) {
        ASSERT_EQ(spec.slots_for_sequence(tokens, step), peak_slots(spec, tokens, step))
            << tokens << " tokens in steps of " << step;
      }
    }
  }
}

TEST(KVCacheSpec, SlotsForSequenceTakesAnyNumberOfTokensAtOnce) {
  constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();
  KVCacheSpec spec = small_spec();
  EXPECT_EQ(spec.slots_for_sequence(std::int64_t{1} << 40, 1), (std::int64_t{1} << 36) * 12);
  EXPECT_EQ(spec.slots_for_sequence(kLargest, 1), (std::int64_t{1} << 59) * 12);
  EXPECT_EQ(spec.slots_for_sequence(kLargest, kLargest), (std::int64_t{1} << 59) * 12);
  spec.num_layers = 1024;
  EXPECT_EQ(spec.slots_for_sequence(kLargest, 7), kLargest) << "saturates";
  spec = small_spec();
  spec.layer_windows = {32, 32, 32, 32};
  EXPECT_EQ(spec.slots_for_sequence(std::int64_t{1} << 40, 1), 3 * 12);
}

}  // namespace
}  // namespace karez
