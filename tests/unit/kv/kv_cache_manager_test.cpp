#include "kv/kv_cache_manager.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"

namespace karez {
namespace {

using testing::HasSubstr;

KVCacheSpec full_spec() {
  KVCacheSpec spec;
  spec.num_layers = 2;
  spec.num_kv_heads = 2;
  spec.head_dim = 16;
  return spec;
}

// Group 0: layers 0 and 2 with a window of 20. Group 1: layer 1, all tokens. One head.
KVCacheSpec window_spec() {
  KVCacheSpec spec;
  spec.num_layers = 3;
  spec.num_kv_heads = 1;
  spec.head_dim = 16;
  spec.layer_windows = {20, 0, 20};
  return spec;
}

std::unique_ptr<KVCacheManager> make_cache(const KVCacheSpec& spec, std::int64_t num_slots) {
  auto cache =
      KVCacheManager::create(spec, num_slots * static_cast<std::int64_t>(spec.slot_bytes()));
  EXPECT_TRUE(cache.has_value());
  return std::move(*cache);
}

std::vector<BlockId> blocks_of(const KVCacheManager& cache, SequenceId sequence, int group = 0) {
  const BlockTableView table = cache.table(sequence, group);
  return {table.begin(), table.end()};
}

std::byte& first_byte(const KVCacheManager& cache, SequenceId sequence, std::size_t block) {
  return *cache.layer(0).slot(0, cache.table(sequence, 0)[block]);
}

TEST(KVCacheManager, CreateRefusesAnInvalidSpec) {
  KVCacheSpec spec = full_spec();
  spec.head_dim = 20;
  const auto cache = KVCacheManager::create(spec, kMiB);
  ASSERT_FALSE(cache.has_value());
  EXPECT_THAT(cache.error().message(), HasSubstr("head_dim is 20"));
}

TEST(KVCacheManager, CreateRefusesACapBelowOneSlot) {
  const auto cache = KVCacheManager::create(full_spec(), 1023);
  ASSERT_FALSE(cache.has_value());
  EXPECT_EQ(cache.error().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(cache.error().message(),
            "the KV cap is 1023 bytes, one KV slot alone needs 1024 bytes");
}

TEST(KVCacheManager, CreateRefusesGiantCapsAtOnce) {
  for (const std::int64_t cap :
       {std::int64_t{1} << 42, std::int64_t{1} << 50, std::numeric_limits<std::int64_t>::max()}) {
    const auto cache = KVCacheManager::create(full_spec(), cap);
    ASSERT_FALSE(cache.has_value()) << cap;
    EXPECT_THAT(cache.error().message(), HasSubstr("the KV cap is "));
  }
}

TEST(KVCacheManager, MemoryNeverExceedsTheCap) {
  const auto slot_bytes = static_cast<std::int64_t>(full_spec().slot_bytes());
  for (const std::int64_t cap : {slot_bytes, 7 * slot_bytes - 1, 8 * slot_bytes + 5}) {
    auto cache = KVCacheManager::create(full_spec(), cap);
    ASSERT_TRUE(cache.has_value());
    const SequenceId sequence = (*cache)->open();
    while ((*cache)->extend(sequence, 1)) {
      EXPECT_LE((*cache)->stats().used_bytes, cap);
    }
    const KVCacheStats stats = (*cache)->stats();
    EXPECT_LE(stats.cap_bytes, cap);
    EXPECT_EQ(stats.slots_total, cap / slot_bytes);
    EXPECT_EQ(stats.slots_used, cap / slot_bytes / 4 * 4);
    EXPECT_EQ(stats.used_bytes, stats.slots_used * slot_bytes);
  }
}

TEST(KVCacheManager, AnOpenSequenceIsEmptyAndTakesNothing) {
  auto cache = make_cache(window_spec(), 30);
  const SequenceId sequence = cache->open();
  EXPECT_EQ(cache->num_tokens(sequence), 0);
  EXPECT_TRUE(cache->table(sequence, 0).empty());
  EXPECT_TRUE(cache->table(sequence, 1).empty());
  EXPECT_EQ(cache->stats().slots_used, 0);
}

TEST(KVCacheManager, ExtendTakesABlockForEach16Tokens) {
  auto cache = make_cache(full_spec(), 40);
  const SequenceId sequence = cache->open();
  for (int tokens = 1; tokens <= 40; ++tokens) {
    EXPECT_EQ(cache->slots_needed(sequence, 1), tokens % 16 == 1 ? 4 : 0);
    ASSERT_TRUE(cache->extend(sequence, 1));
    EXPECT_EQ(cache->num_tokens(sequence), tokens);
    EXPECT_EQ(cache->stats().blocks_used, (tokens + 15) / 16);
    EXPECT_EQ(cache->stats().slots_used, (tokens + 15) / 16 * 4);
  }
  EXPECT_EQ(cache->check_invariants(), "");
}

TEST(KVCacheManager, ExtendByNothingTakesNothing) {
  auto cache = make_cache(full_spec(), 8);
  const SequenceId parent = cache->open();
  ASSERT_TRUE(cache->extend(parent, 0));
  EXPECT_EQ(cache->stats().slots_used, 0);
  ASSERT_TRUE(cache->extend(parent, 20));
  const auto child = cache->fork(parent, 20);
  ASSERT_TRUE(child.has_value());
  EXPECT_TRUE(cache->extend(*child, 0)) << "nothing is written, so nothing is copied";
  EXPECT_EQ(cache->stats().copies, 0);
}

TEST(KVCacheManager, ExtendIsAllOrNothing) {
  auto cache = make_cache(full_spec(), 4 * 3);
  const SequenceId sequence = cache->open();
  ASSERT_TRUE(cache->extend(sequence, 10));
  EXPECT_FALSE(cache->extend(sequence, 39));
  EXPECT_FALSE(cache->extend(sequence, std::numeric_limits<int>::max()));
  EXPECT_EQ(cache->num_tokens(sequence), 10);
  EXPECT_EQ(cache->stats().blocks_used, 1);
  EXPECT_TRUE(cache->extend(sequence, 38));
  EXPECT_EQ(cache->check_invariants(), "");
}

TEST(KVCacheManager, ExtendOfSeveralGroupsIsAllOrNothing) {
  auto cache = make_cache(window_spec(), 5);  // a block of each group takes 2 + 1
  const SequenceId sequence = cache->open();
  ASSERT_TRUE(cache->extend(sequence, 16));
  EXPECT_FALSE(cache->extend(sequence, 1));
  EXPECT_EQ(cache->stats().slots_used, 3);
  EXPECT_EQ(blocks_of(*cache, sequence, 0).size(), 1U);
  EXPECT_EQ(blocks_of(*cache, sequence, 1).size(), 1U);
  EXPECT_EQ(cache->check_invariants(), "");
}

TEST(KVCacheManager, APoolSmallerThanOneBlockNeverExtends) {
  auto cache = make_cache(full_spec(), 3);
  EXPECT_FALSE(cache->extend(cache->open(), 1));
}

TEST(KVCacheManager, ConsecutiveBlocksOfAHeadAreNeighboursInMemory) {
  auto cache = make_cache(full_spec(), 40);
  const SequenceId sequence = cache->open();
  ASSERT_TRUE(cache->extend(sequence, 100));
  for (int layer = 0; layer < 2; ++layer) {
    const KVLayerView view = cache->layer(layer);
    for (int head = 0; head < 2; ++head) {
      const BlockTableView table = cache->table(sequence, 0);
      for (std::size_t i = 1; i < table.size(); ++i) {
        EXPECT_EQ(view.slot(head, table[i]), view.slot(head, table[i - 1]) + view.slot_bytes());
      }
    }
  }
}

TEST(KVCacheManager, CloseGivesEverythingBack) {
  auto cache = make_cache(window_spec(), 30);
  const SequenceId sequence = cache->open();
  ASSERT_TRUE(cache->extend(sequence, 100));
  cache->close(sequence);
  EXPECT_EQ(cache->stats().slots_used, 0);
  EXPECT_EQ(cache->check_invariants(), "");
}

TEST(KVCacheManager, ForkSharesAllBlocks) {
  auto cache = make_cache(full_spec(), 40);
  const SequenceId parent = cache->open();
  ASSERT_TRUE(cache->extend(parent, 40));
  const auto child = cache->fork(parent, 33);
  ASSERT_TRUE(child.has_value());
  EXPECT_EQ(cache->num_tokens(*child), 33);
  EXPECT_EQ(blocks_of(*cache, *child), blocks_of(*cache, parent));
  EXPECT_EQ(cache->stats().blocks_used, 3);
  EXPECT_EQ(cache->stats().blocks_shared, 3);
  const auto empty = cache->fork(parent, 0);
  ASSERT_TRUE(empty.has_value());
  EXPECT_TRUE(blocks_of(*cache, *empty).empty());
  EXPECT_EQ(cache->check_invariants(), "");
}

TEST(KVCacheManager, AForkLivesOnWithoutItsParent) {
  auto cache = make_cache(full_spec(), 40);
  const SequenceId parent = cache->open();
  ASSERT_TRUE(cache->extend(parent, 40));
  first_byte(*cache, parent, 0) = std::byte{42};
  const auto child = cache->fork(parent, 16);
  cache->close(parent);
  EXPECT_EQ(cache->stats().blocks_used, 1);
  EXPECT_EQ(first_byte(*cache, *child, 0), std::byte{42});
}

TEST(KVCacheManager, ASharedPartBlockIsCopiedBeforeItIsWritten) {
  auto cache = make_cache(full_spec(), 40);
  const SequenceId parent = cache->open();
  ASSERT_TRUE(cache->extend(parent, 20));
  first_byte(*cache, parent, 1) = std::byte{42};
  const auto child = cache->fork(parent, 20);
  EXPECT_EQ(cache->slots_needed(*child, 1), 4);
  ASSERT_TRUE(cache->extend(*child, 1));
  EXPECT_EQ(cache->stats().copies, 1);
  EXPECT_EQ(blocks_of(*cache, *child)[0], blocks_of(*cache, parent)[0]);
  EXPECT_NE(blocks_of(*cache, *child)[1], blocks_of(*cache, parent)[1]);
  EXPECT_EQ(first_byte(*cache, *child, 1), std::byte{42});
  // The parent is now the only one with the old block and writes it in place.
  EXPECT_EQ(cache->slots_needed(parent, 1), 0);
  ASSERT_TRUE(cache->extend(parent, 1));
  EXPECT_EQ(cache->stats().copies, 1);
}

TEST(KVCacheManager, SharedFullBlocksAreNeverCopied) {
  auto cache = make_cache(full_spec(), 40);
  const SequenceId parent = cache->open();
  ASSERT_TRUE(cache->extend(parent, 32));
  const auto child = cache->fork(parent, 32);
  ASSERT_TRUE(cache->extend(*child, 20));
  EXPECT_EQ(cache->stats().copies, 0);
  EXPECT_EQ(cache->stats().blocks_shared, 2);
}

TEST(KVCacheManager, TruncatingIntoASharedBlockCopiesItOnTheNextWrite) {
  auto cache = make_cache(full_spec(), 40);
  const SequenceId parent = cache->open();
  ASSERT_TRUE(cache->extend(parent, 32));
  const auto child = cache->fork(parent, 32);
  ASSERT_TRUE(cache->truncate(*child, 20));
  EXPECT_EQ(cache->stats().copies, 0);
  ASSERT_TRUE(cache->extend(*child, 1));
  EXPECT_EQ(cache->stats().copies, 1);
  EXPECT_NE(blocks_of(*cache, *child)[1], blocks_of(*cache, parent)[1]);
}

TEST(KVCacheManager, CopyOnWriteWithoutRoomChangesNothing) {
  auto cache = make_cache(full_spec(), 4 * 2);
  const SequenceId parent = cache->open();
  ASSERT_TRUE(cache->extend(parent, 20));
  const auto child = cache->fork(parent, 20);
  EXPECT_FALSE(cache->extend(*child, 1));
  EXPECT_EQ(blocks_of(*cache, *child), blocks_of(*cache, parent));
  EXPECT_EQ(cache->num_tokens(*child), 20);
  EXPECT_EQ(cache->stats().copies, 0);
  cache->close(parent);
  EXPECT_TRUE(cache->extend(*child, 1)) << "alone, it needs no copy";
}

TEST(KVCacheManager, TruncateForgetsWholeBlocks) {
  auto cache = make_cache(full_spec(), 40);
  const SequenceId sequence = cache->open();
  ASSERT_TRUE(cache->extend(sequence, 40));
  const std::vector<BlockId> before = blocks_of(*cache, sequence);
  ASSERT_TRUE(cache->truncate(sequence, 17));
  EXPECT_EQ(cache->num_tokens(sequence), 17);
  EXPECT_EQ(blocks_of(*cache, sequence), (std::vector<BlockId>{before[0], before[1]}));
  ASSERT_TRUE(cache->truncate(sequence, 0));
  EXPECT_EQ(cache->stats().slots_used, 0);
}

TEST(KVCacheManager, BlocksThatNoLaterRowReadsAreReleased) {
  auto cache = make_cache(window_spec(), 100);
  const SequenceId sequence = cache->open();
  for (int position = 0; position < 100; ++position) {
    ASSERT_TRUE(cache->extend(sequence, 1));
    const std::vector<BlockId> window = blocks_of(*cache, sequence, 0);
    for (std::size_t i = 0; i < window.size(); ++i) {
      const int last_token = static_cast<int>(i) * 16 + 15;
      EXPECT_EQ(window[i].is_none(), last_token <= position - 20) << position << " block " << i;
    }
    for (const BlockId block : blocks_of(*cache, sequence, 1)) {
      EXPECT_FALSE(block.is_none());
    }
  }
  EXPECT_EQ(cache->check_invariants(), "");
}

TEST(KVCacheManager, AChunkKeepsTheWindowOfItsFirstRow) {
  auto cache = make_cache(window_spec(), 100);
  const SequenceId sequence = cache->open();
  ASSERT_TRUE(cache->extend(sequence, 64));
  EXPECT_FALSE(blocks_of(*cache, sequence, 0)[0].is_none());
  ASSERT_TRUE(cache->extend(sequence, 64));  // its first row reads from position 45 on
  const std::vector<BlockId> window = blocks_of(*cache, sequence, 0);
  ASSERT_EQ(window.size(), 8U);
  EXPECT_TRUE(window[0].is_none() && window[1].is_none());
  EXPECT_FALSE(window[2].is_none());
}

TEST(KVCacheManager, ReleasedBlocksMakeRoomForTheSameExtend) {
  auto cache = make_cache(window_spec(), 13);
  const SequenceId sequence = cache->open();
  ASSERT_TRUE(cache->extend(sequence, 64));  // 4 blocks of 2 + 1 slots: one slot is left
  EXPECT_EQ(cache->slots_needed(sequence, 1), 3 - 2 * 2);
  ASSERT_TRUE(cache->extend(sequence, 1));
  EXPECT_EQ(cache->stats().slots_used, 11);
}

TEST(KVCacheManager, UnreadBlocksAreReleasedEvenIfExtendFails) {
  auto cache = make_cache(window_spec(), 13);
  const SequenceId sequence = cache->open();
  ASSERT_TRUE(cache->extend(sequence, 64));
  EXPECT_FALSE(cache->extend(sequence, 1000));
  EXPECT_EQ(cache->num_tokens(sequence), 64);
  EXPECT_EQ(cache->stats().slots_used, 12 - 2 * 2);
  EXPECT_EQ(cache->check_invariants(), "");
}

TEST(KVCacheManager, CuttingBackPastTheWindowIsRefused) {
  auto cache = make_cache(window_spec(), 100);
  const SequenceId sequence = cache->open();
  ASSERT_TRUE(cache->extend(sequence, 100));
  ASSERT_TRUE(cache->extend(sequence, 1));  // releases blocks 0 to 4: tokens up to 79
  ASSERT_TRUE(blocks_of(*cache, sequence, 0)[4].is_none());
  ASSERT_FALSE(blocks_of(*cache, sequence, 0)[5].is_none());
  const KVCacheStats before = cache->stats();
  // Row 99 reads from position 80 on, row 98 from 79 on.
  EXPECT_EQ(cache->fork(sequence, 98), std::nullopt);
  EXPECT_FALSE(cache->truncate(sequence, 98));
  EXPECT_FALSE(cache->truncate(sequence, 1));
  EXPECT_EQ(cache->num_tokens(sequence), 101);
  EXPECT_EQ(cache->stats().blocks_used, before.blocks_used);
  const auto child = cache->fork(sequence, 99);
  ASSERT_TRUE(child.has_value());
  EXPECT_TRUE(cache->extend(*child, 1));
  EXPECT_TRUE(cache->truncate(sequence, 99));
  EXPECT_TRUE(cache->truncate(sequence, 0)) << "an empty sequence reads nothing";
  EXPECT_TRUE(cache->extend(sequence, 5));
  EXPECT_EQ(cache->check_invariants(), "");
}

TEST(KVCacheManager, SlotsForSequenceIsExactlyEnough) {
  for (const KVCacheSpec& spec : {full_spec(), window_spec()}) {
    for (const int step : {1, 7, 16, 33, 200}) {
      const std::int64_t slots = spec.slots_for_sequence(130, step);
      for (const std::int64_t missing : {0, 1}) {
        auto cache = make_cache(spec, slots - missing);
        const SequenceId sequence = cache->open();
        bool fits = true;
        for (int tokens = 0; fits && tokens < 130; tokens += step) {
          fits = cache->extend(sequence, std::min(step, 130 - tokens));
        }
        EXPECT_EQ(fits, missing == 0) << "step " << step;
      }
    }
  }
}

TEST(KVCacheManager, LayersReportTheirGroups) {
  const auto cache = make_cache(window_spec(), 10);
  ASSERT_EQ(cache->layer_groups().size(), 2U);
  EXPECT_EQ(cache->group_of_layer(0), 0);
  EXPECT_EQ(cache->group_of_layer(1), 1);
  EXPECT_EQ(cache->spec().layer_windows, window_spec().layer_windows);
}

TEST(KVCacheManager, MetadataCountsWhatSequencesTake) {
  auto cache = make_cache(full_spec(), 4000);
  const std::int64_t empty = cache->stats().metadata_bytes;
  EXPECT_GE(empty, 4 * 4000);
  EXPECT_LT(empty, 4 * 4000 + 29 * 1000 + 4000);
  const SequenceId sequence = cache->open();
  ASSERT_TRUE(cache->extend(sequence, 800 * kBlockSize));
  EXPECT_GE(cache->stats().metadata_bytes, empty + 800 * 4);
}

TEST(KVCacheManager, IdsOfClosedSequencesAreNotUsedAgainSoon) {
  auto cache = make_cache(full_spec(), 4);
  const SequenceId first = cache->open();
  cache->close(first);
  for (int i = 0; i < 1000; ++i) {
    const SequenceId next = cache->open();
    EXPECT_NE(next, first);
    cache->close(next);
  }
}

TEST(KVCacheManagerDeathTest, UseOfAClosedSequenceIsABug) {
  auto cache = make_cache(full_spec(), 4);
  const SequenceId sequence = cache->open();
  cache->close(sequence);
  EXPECT_DEATH(static_cast<void>(cache->extend(sequence, 1)), "not open");
  EXPECT_DEATH(static_cast<void>(cache->fork(sequence, 0)), "not open");
  EXPECT_DEATH(static_cast<void>(cache->table(sequence, 0)), "not open");
  EXPECT_DEATH(cache->close(sequence), "not open");
  EXPECT_DEATH(cache->close(SequenceId::none()), "not open");
}

TEST(KVCacheManagerDeathTest, LengthsThatCannotBeAreBugs) {
  auto cache = make_cache(full_spec(), 4);
  const SequenceId sequence = cache->open();
  EXPECT_DEATH(static_cast<void>(cache->extend(sequence, -1)), "shorter");
  EXPECT_DEATH(static_cast<void>(cache->truncate(sequence, 1)), "longer");
  EXPECT_DEATH(static_cast<void>(cache->fork(sequence, 1)), "parent's tokens");
  EXPECT_DEATH(static_cast<void>(cache->layer(2)), "no such layer");
  EXPECT_DEATH(static_cast<void>(cache->table(sequence, 1)), "no such layer group");
}

}  // namespace
}  // namespace karez
