#include "engine/kv_capacity.h"

#include <gtest/gtest.h>

#include <limits>

namespace karez {
namespace {

constexpr std::int64_t kStep = 16;

// A block takes 2 layers x 2 heads = 4 slots; a slot 16 x 16 x 2 x 2 = 1024 bytes.
KVCacheSpec small_spec() {
  return {.num_layers = 2, .num_kv_heads = 2, .head_dim = 16, .layer_windows = {}};
}

TEST(KvCapacity, CountsWholeSlots) {
  EXPECT_EQ(slots_in_cap(small_spec(), 0), 0);
  EXPECT_EQ(slots_in_cap(small_spec(), 1023), 0);
  EXPECT_EQ(slots_in_cap(small_spec(), 10 * 1024 + 5), 10);
}

TEST(KvCapacity, FindsTheLongestSequenceOfWholeBlocks) {
  EXPECT_EQ(longest_sequence_tokens(small_spec(), 4095, 1000, kStep), 0);
  EXPECT_EQ(longest_sequence_tokens(small_spec(), 4096, 1000, kStep), 16);
  EXPECT_EQ(longest_sequence_tokens(small_spec(), 10 * 1024, 1000, kStep), 32);
  EXPECT_EQ(longest_sequence_tokens(small_spec(), 1 << 30, 1000, kStep), 1000);
  EXPECT_EQ(longest_sequence_tokens(small_spec(), 1 << 30, 0, kStep), 0);
}

TEST(KvCapacity, CountsSequencesOfWholeBlocks) {
  EXPECT_EQ(sequences_in_cap(small_spec(), 3 * 4096, 16, kStep), 3);
  EXPECT_EQ(sequences_in_cap(small_spec(), 3 * 4096, 17, kStep), 1);
  EXPECT_EQ(sequences_in_cap(small_spec(), 4095, 16, kStep), 0);
}

TEST(KvCapacity, NeedsAsManyBytesAsTheLongestSequenceFitsInto) {
  for (std::int64_t tokens = 1; tokens < 100; ++tokens) {
    const std::int64_t bytes = bytes_for_sequence(small_spec(), tokens, kStep);
    EXPECT_EQ(bytes, (tokens + 15) / 16 * 4096);
    EXPECT_GE(longest_sequence_tokens(small_spec(), bytes, 1000, kStep), tokens);
    EXPECT_LT(longest_sequence_tokens(small_spec(), bytes - 1, 1000, kStep), tokens);
  }
}

TEST(KvCapacity, WindowsLimitWhatASequenceNeeds) {
  KVCacheSpec spec = small_spec();
  spec.layer_windows = {32, 32};
  const std::int64_t bytes = bytes_for_sequence(spec, 1 << 20, kStep);
  EXPECT_LE(bytes, 4 * 4096);
  EXPECT_EQ(longest_sequence_tokens(spec, bytes, 1 << 30, kStep), 1 << 30);
  EXPECT_LT(longest_sequence_tokens(spec, bytes - 1, 1 << 30, kStep), 64);
  spec.layer_windows = {32, 0};
  EXPECT_GT(bytes_for_sequence(spec, 1 << 20, kStep), (1 << 20) / 16 * 2048);
}

TEST(KvCapacity, DoesNotOverflow) {
  const KVCacheSpec large{.num_layers = 1024,
                          .num_kv_heads = 1024,
                          .head_dim = 512,
                          .type = KvType::kF32,
                          .layer_windows = {}};
  constexpr auto kMax = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(bytes_for_sequence(large, kMax / 2, 512), kMax);
  EXPECT_GT(longest_sequence_tokens(large, kMax, std::numeric_limits<int>::max(), 512), 0);
}

}  // namespace
}  // namespace karez
