#include "engine/sequence_copy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <vector>

namespace karez {
namespace {

KVCacheSpec spec_with(std::vector<int> windows) {
  KVCacheSpec spec;
  spec.num_layers = 2;
  spec.num_kv_heads = 2;
  spec.head_dim = 16;
  spec.layer_windows = std::move(windows);
  return spec;
}

std::vector<std::byte*> slots_of(const KVCacheManager& kv, SequenceId sequence) {
  std::vector<std::byte*> slots;
  for (int layer = 0; layer < kv.spec().num_layers; ++layer) {
    for (const BlockId block : kv.table(sequence, kv.group_of_layer(layer))) {
      for (int head = 0; head < kv.spec().num_kv_heads && !block.is_none(); ++head) {
        slots.push_back(kv.layer(layer).slot(head, block));
      }
    }
  }
  return slots;
}

TEST(SequenceCopy, HasTheContentInSlotsOfItsOwn) {
  const auto kv = KVCacheManager::create(spec_with({}), 1 << 20);
  ASSERT_TRUE(kv.has_value());
  const SequenceId source = (*kv)->open();
  ASSERT_TRUE((*kv)->extend(source, 37));
  const std::vector<std::byte*> from = slots_of(**kv, source);
  for (std::size_t i = 0; i < from.size(); ++i) {
    std::memset(from[i], static_cast<int>(i + 1), (*kv)->spec().slot_bytes());
  }

  const auto copy = copy_sequence(**kv, source, 16);
  ASSERT_TRUE(copy.has_value());
  EXPECT_EQ((*kv)->num_tokens(*copy), 37);
  const std::vector<std::byte*> to = slots_of(**kv, *copy);
  ASSERT_EQ(to.size(), from.size());
  std::set<std::byte*> all(from.begin(), from.end());
  all.insert(to.begin(), to.end());
  EXPECT_EQ(all.size(), from.size() + to.size());
  for (std::size_t i = 0; i < from.size(); ++i) {
    EXPECT_EQ(std::memcmp(from[i], to[i], (*kv)->spec().slot_bytes()), 0) << i;
  }
  EXPECT_EQ((*kv)->stats().blocks_shared, 0);
  EXPECT_EQ((*kv)->check_invariants(), "");
}

TEST(SequenceCopy, NeedsNoMoreThanTheSourceWhereWindowsLetBlocksGo) {
  const auto kv = KVCacheManager::create(spec_with({0, 32}), 1 << 20);
  ASSERT_TRUE(kv.has_value());
  const SequenceId source = (*kv)->open();
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE((*kv)->extend(source, 16));
  }
  const std::int64_t used = (*kv)->stats().slots_used;
  const auto copy = copy_sequence(**kv, source, 16);
  ASSERT_TRUE(copy.has_value());
  EXPECT_EQ((*kv)->stats().slots_used, 2 * used);
  EXPECT_EQ((*kv)->check_invariants(), "");
}

TEST(SequenceCopy, SaysNoneAndChangesNothingWithoutRoom) {
  const KVCacheSpec spec = spec_with({});
  const auto slots = static_cast<std::int64_t>(spec.slot_bytes()) * spec.slots_for_sequence(40, 40);
  const auto kv = KVCacheManager::create(spec, slots + slots / 2);
  ASSERT_TRUE(kv.has_value());
  const SequenceId source = (*kv)->open();
  ASSERT_TRUE((*kv)->extend(source, 40));
  const std::int64_t used = (*kv)->stats().slots_used;
  EXPECT_FALSE(copy_sequence(**kv, source, 16).has_value());
  EXPECT_EQ((*kv)->stats().slots_used, used);
}

}  // namespace
}  // namespace karez
