// Which blocks of which lists are loaded, left out and wanted, over a real store with a home tier.
#include "engine/block_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "kv/tier/host_tier.h"

namespace karez {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int kBlocks = 12;  // complete ones; one more is being filled
constexpr int kOwn = kBlocks;
constexpr int kLayer = 1;
constexpr int kNumTokens = kBlocks * kBlockSize + 3;

KVCacheSpec spec() {
  KVCacheSpec spec;
  spec.num_layers = 2;
  spec.num_kv_heads = 2;
  spec.head_dim = 16;
  return spec;
}

struct List {
  int sequence = 0;
  int position = kNumTokens - 1;
  int kv_head = 0;
  bool is_hint = false;
  std::vector<std::int32_t> blocks;
  std::vector<float> masses;
};

class BlockLoaderLists : public testing::Test {
 protected:
  BlockLoaderLists() {
    const auto slot = static_cast<std::int64_t>(spec().slot_bytes());
    auto home =
        HostTier::create(
            {.block_bytes = spec().slot_bytes(), .capacity_bytes = 1000 * slot, .num_workers = 0})
            .value();
    kv_ = KVCacheManager::create(spec(), 400 * slot, std::move(home)).value();
    for (int s = 0; s < 2; ++s) {
      ids_.push_back(kv_->open());
      EXPECT_TRUE(kv_->extend(ids_.back(), kNumTokens));
      SequenceRows rows;
      rows.first_position = kNumTokens - 1;
      rows.num_rows = 1;
      rows.first_row = s;
      rows.first_sparse_position = 0;
      rows.tables = {kv_->table(ids_.back(), 0)};
      sequences_.push_back(rows);
      for (int b = 0; b <= kBlocks; ++b) {
        for (int head = 0; head < 2; ++head) {
          std::memset(slot_of(s, head, b), content(s, head, b), spec().slot_bytes());
        }
      }
      kv_->write_home(ids_.back());
    }
    for (int i = 0; i < 4; ++i) {
      kv_->residency()->advance();
      kv_->residency()->settle();
    }
    evict_all();
  }

  // But for the blocks that are being filled.
  void evict_all() {
    kv_->residency()->make_room(400);
    EXPECT_FALSE(is_fast(0, 0, 0));
  }

  static int content(int sequence, int head, int entry) {
    return 1 + sequence * 100 + head * 40 + entry;
  }
  BlockId block(int sequence, int entry) const {
    return sequences_[static_cast<std::size_t>(sequence)]
        .tables[0][static_cast<std::size_t>(entry)];
  }
  std::byte* slot_of(int sequence, int head, int entry) const {
    return kv_->layer(kLayer).slot(head, block(sequence, entry));
  }
  bool is_fast(int sequence, int head, int entry) const {
    return !kv_->layer(kLayer).slots_of_head(head)[block(sequence, entry).value].is_none();
  }
  // Brings them up, in both heads of sequence 0.
  void make_fast(const std::vector<int>& entries) {
    Residency& residency = *kv_->residency();
    residency.begin_step();
    residency.begin_layer(kLayer);
    for (const int entry : entries) {
      residency.need(0, block(0, entry));
      residency.need(1, block(0, entry));
    }
    EXPECT_TRUE(residency.load().empty());
    residency.end_step();
  }

  // One layer of one step. Lists are left as the loader leaves them, their blocks are there.
  std::vector<BlockLoader::SequenceReads> run(BlockLoader& loader, std::vector<List>& lists,
                                              int num_sequences = 1) {
    std::vector<SelectedBlocks> selected;
    for (List& list : lists) {
      selected.push_back(
          {list.sequence, list.position, list.kv_head, list.is_hint, list.blocks, list.masses, {}});
    }
    loader.begin_step(*kv_, std::span(sequences_).first(static_cast<std::size_t>(num_sequences)));
    loader.on_selected(kLayer, selected);
    for (std::size_t i = 0; i < lists.size(); ++i) {
      lists[i].blocks.resize(selected[i].blocks.size());
      for (const std::int32_t entry : lists[i].blocks) {
        EXPECT_TRUE(is_fast(lists[i].sequence, lists[i].kv_head, entry));
        EXPECT_EQ(std::to_integer<int>(*slot_of(lists[i].sequence, lists[i].kv_head, entry)),
                  content(lists[i].sequence, lists[i].kv_head, entry));
      }
    }
    auto reads = loader.end_step();
    EXPECT_EQ(kv_->check_invariants(), "");
    return reads;
  }

  std::unique_ptr<KVCacheManager> kv_;
  std::vector<SequenceId> ids_;
  std::vector<SequenceRows> sequences_;
};

// Blocks 2 and 5 are there, the own one always is; 1, 3, 4 and 7 are not. 3 and 7 are as heavy.
std::vector<List> one_list() {
  return {
      {.blocks = {1, 2, 3, 4, 5, 7, kOwn}, .masses = {0.05F, 0.3F, 0.1F, 0.2F, 0.01F, 0.1F, 0.2F}}};
}

TEST_F(BlockLoaderLists, AListIsLoadedWholeWithoutABound) {
  make_fast({2, 5});
  BlockLoader loader;
  std::vector<List> lists = one_list();
  const auto reads = run(loader, lists);
  EXPECT_THAT(lists[0].blocks, ElementsAre(1, 2, 3, 4, 5, 7, kOwn));
  EXPECT_EQ(reads[0].blocks_read, 7);
  EXPECT_EQ(reads[0].blocks_loaded, 4);
  EXPECT_EQ(reads[0].missed.num_lists, 0);
  EXPECT_EQ(loader.take_missed().num_lists, 0);
}

TEST_F(BlockLoaderLists, UnderABoundTheHeaviestMissingOnesAreWaitedFor) {
  struct Case {
    int bound;
    std::vector<std::int32_t> left;
    double missed;
  };
  const std::vector<Case> cases = {{0, {2, 5, kOwn}, 0.45},
                                   {1, {2, 4, 5, kOwn}, 0.25},
                                   {2, {2, 3, 4, 5, kOwn}, 0.15},  // 3 before 7
                                   {3, {2, 3, 4, 5, 7, kOwn}, 0.05},
                                   {4, {1, 2, 3, 4, 5, 7, kOwn}, 0},
                                   {1000, {1, 2, 3, 4, 5, 7, kOwn}, 0}};
  for (const Case& one : cases) {
    evict_all();
    make_fast({2, 5});
    BlockLoader loader(OnMiss{one.bound});
    std::vector<List> lists = one_list();
    const auto reads = run(loader, lists);
    EXPECT_EQ(lists[0].blocks, one.left) << one.bound;
    const auto skipped = static_cast<std::int64_t>(7 - one.left.size());
    EXPECT_EQ(reads[0].blocks_read, static_cast<std::int64_t>(one.left.size()));
    EXPECT_EQ(reads[0].blocks_loaded, 4 - skipped);
    EXPECT_EQ(reads[0].missed.blocks_skipped, skipped);
    EXPECT_EQ(reads[0].missed.num_lists, 1);
    EXPECT_NEAR(reads[0].missed.sum, one.missed, 1e-6);
    EXPECT_NEAR(reads[0].missed.worst, one.missed, 1e-6);
    const MissedMass taken = loader.take_missed();
    EXPECT_EQ(taken.blocks_skipped, skipped);
    EXPECT_NEAR(taken.mean(), one.missed, 1e-6);
    EXPECT_EQ(loader.take_missed().num_lists, 0);
    EXPECT_EQ(loader.wanted().size(), static_cast<std::size_t>(skipped));
  }
}

// Entries 1 to 3 are archived pages of one block.
TEST_F(BlockLoaderLists, UnderABoundABlockOfSeveralPagesIsOne) {
  const std::vector<BlockId> table = {block(0, 0), block(0, 1), block(0, 1),
                                      block(0, 1), block(0, 2), block(0, kOwn)};
  sequences_[0].tables[0] = table;
  sequences_[0].first_position = 5 * kBlockSize + 3;
  std::vector<std::int32_t> blocks = {0, 1, 2, 3, 4, 5};
  std::vector<float> masses = {0.3F, 0.1F, 0.15F, 0.1F, 0.2F, 0.15F};
  std::vector<SelectedBlocks> selected = {{0, 5 * kBlockSize + 3, 0, false, blocks, masses, {}}};
  BlockLoader loader(OnMiss{2});
  loader.begin_step(*kv_, std::span(sequences_).first(1));
  loader.on_selected(kLayer, selected);
  EXPECT_THAT(selected[0].blocks, ElementsAre(0, 1, 2, 3, 5))
      << "the block of 0.35 and that of 0.3";
  const auto reads = loader.end_step();
  EXPECT_EQ(reads[0].blocks_loaded, 2);
  EXPECT_EQ(reads[0].missed.blocks_skipped, 1);
}

TEST_F(BlockLoaderLists, NothingIsLeftOutOfWhatIsThere) {
  make_fast({1, 2, 3, 4, 5, 7});
  BlockLoader loader(OnMiss{0});
  std::vector<List> lists = one_list();
  const auto reads = run(loader, lists);
  EXPECT_THAT(lists[0].blocks, ElementsAre(1, 2, 3, 4, 5, 7, kOwn));
  EXPECT_EQ(reads[0].blocks_loaded, 0);
  EXPECT_EQ(reads[0].missed.num_lists, 1);
  EXPECT_EQ(reads[0].missed.sum, 0);
}

TEST_F(BlockLoaderLists, HeadsAndSequencesAreCountedApartAndTheWorstListIsKept) {
  make_fast({2});
  BlockLoader loader(OnMiss{0});
  std::vector<List> lists = {
      {.blocks = {2, 3, kOwn}, .masses = {0.5F, 0.1F, 0.2F}},
      {.kv_head = 1, .blocks = {2, 3, 4, kOwn}, .masses = {0, 0.2F, 0.2F, 0}},
      {.sequence = 1, .blocks = {2, kOwn}, .masses = {0.7F, 0.1F}}};
  const auto reads = run(loader, lists, 2);
  EXPECT_THAT(lists[1].blocks, ElementsAre(2, kOwn));
  EXPECT_THAT(lists[2].blocks, ElementsAre(kOwn));
  EXPECT_EQ(reads[0].missed.num_lists, 2);
  EXPECT_EQ(reads[0].missed.blocks_skipped, 3);
  EXPECT_NEAR(reads[0].missed.sum, 0.5, 1e-6);
  EXPECT_NEAR(reads[0].missed.worst, 0.4, 1e-6);
  EXPECT_EQ(reads[1].missed.blocks_skipped, 1);
  EXPECT_NEAR(loader.take_missed().worst, 0.7, 1e-6);
}

TEST_F(BlockLoaderLists, WhatSomeRowWaitsForIsLeftOutByNone) {
  // Two rows that verify a draft: each waits for one block and gets the other's too.
  for (const bool swapped : {false, true}) {
    evict_all();
    BlockLoader loader(OnMiss{1});
    std::vector<List> lists = {
        {.blocks = {1, 2, 3, kOwn}, .masses = {0.1F, 0.3F, 0.2F, 0}},
        {.blocks = {1, 2, 3, kOwn}, .masses = {0.1F, 0.2F, 0.3F, 0}},
    };
    if (swapped) {
      std::swap(lists[0].masses, lists[1].masses);
    }
    const auto reads = run(loader, lists);
    EXPECT_THAT(lists[0].blocks, ElementsAre(2, 3, kOwn));
    EXPECT_THAT(lists[1].blocks, ElementsAre(2, 3, kOwn));
    EXPECT_EQ(reads[0].blocks_loaded, 2);
    EXPECT_EQ(reads[0].missed.blocks_skipped, 2);
  }
}

TEST_F(BlockLoaderLists, HintRowsTakeWhatIsThereAndNameTheRest) {
  make_fast({2});
  BlockLoader loader;
  std::vector<List> lists = {
      {.blocks = {2, 3, kOwn}, .masses = {0.5F, 0.1F, 0.2F}},
      {.is_hint = true, .blocks = {2, 3, 4, 5, kOwn}, .masses = {0.1F, 0.2F, 0.05F, 0.3F, 0}},
      {.is_hint = true, .blocks = {4, 5, 6, kOwn}, .masses = {0.5F, 0.1F, 0.2F, 0}},
  };
  const auto reads = run(loader, lists);
  EXPECT_THAT(lists[0].blocks, ElementsAre(2, 3, kOwn));
  EXPECT_THAT(lists[1].blocks, ElementsAre(2, 3, kOwn));
  EXPECT_THAT(lists[2].blocks, ElementsAre(kOwn));
  EXPECT_EQ(reads[0].blocks_loaded, 1);
  // What a guess goes without is no loss of quality.
  EXPECT_EQ(reads[0].missed.num_lists, 0);
  EXPECT_FALSE(is_fast(0, 0, 4));
  ASSERT_EQ(loader.wanted().size(), 3U);
  const std::vector<std::pair<int, float>> expected = {{4, 0.5F}, {5, 0.3F}, {6, 0.2F}};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(loader.wanted()[i].block, block(0, expected[i].first));
    EXPECT_EQ(loader.wanted()[i].mass, expected[i].second);
    EXPECT_EQ(loader.wanted()[i].layer, kLayer);
    EXPECT_EQ(loader.wanted()[i].kv_head, 0);
  }
}

TEST_F(BlockLoaderLists, AHintRowAloneLoadsNothingAndKeepsItsOwnBlock) {
  BlockLoader loader;
  std::vector<List> lists = {{.is_hint = true, .blocks = {0, 1, 2, kOwn}}};
  const auto reads = run(loader, lists);
  EXPECT_THAT(lists[0].blocks, ElementsAre(kOwn));
  EXPECT_EQ(reads[0].blocks_loaded, 0);
  EXPECT_EQ(kv_->residency()->stats().demand_misses, 0);
}

TEST_F(BlockLoaderLists, ARecorderIsToldOfListsBeforeTheyAreShortened) {
  BlockLoader loader;
  std::vector<ListedBlock> listed;
  loader.set_recorder(&listed);
  std::vector<List> lists = {{.is_hint = true, .blocks = {0, 2, kOwn}},
                             {.kv_head = 1, .is_hint = true, .blocks = {1, kOwn}}};
  run(loader, lists);
  EXPECT_THAT(lists[0].blocks, ElementsAre(kOwn));
  EXPECT_THAT(listed, ElementsAre(ListedBlock{kLayer, 0, 0}, ListedBlock{kLayer, 0, 2},
                                  ListedBlock{kLayer, 0, kOwn}, ListedBlock{kLayer, 1, 1},
                                  ListedBlock{kLayer, 1, kOwn}));
  // Of rows that do not select, what they see.
  listed.clear();
  std::vector<List> none;
  run(loader, none);
  EXPECT_EQ(listed.size(), 2U * (kBlocks + 1));
  EXPECT_THAT(listed, testing::Contains(ListedBlock{kLayer, 1, kOwn}));
  listed.clear();
  loader.set_recorder(nullptr);
  run(loader, lists);
  EXPECT_TRUE(listed.empty());
}

TEST_F(BlockLoaderLists, RowsThatDoNotSelectAlwaysWait) {
  // Sequence 1 has no lists in this layer; sequence 0 shares no block with it.
  BlockLoader loader(OnMiss{0});
  std::vector<List> lists = {{.blocks = {1, kOwn}, .masses = {0.5F, 0.1F}}};
  const auto reads = run(loader, lists, 2);
  EXPECT_THAT(lists[0].blocks, ElementsAre(kOwn));
  EXPECT_EQ(reads[1].blocks_loaded, kBlocks * 2);
  EXPECT_EQ(reads[1].missed.num_lists, 0);
  std::vector<List> none;
  const auto dense = run(loader, none, 1);
  // The block that the list went without was fetched after all, for the next row.
  EXPECT_EQ(dense[0].blocks_loaded, kBlocks * 2 - 1);
  EXPECT_EQ(dense[0].missed.num_lists, 0);
}

TEST_F(BlockLoaderLists, WithoutMassesTheFirstMissingOnesAreWaitedFor) {
  BlockLoader loader(OnMiss{2});
  std::vector<List> lists = {{.blocks = {3, 4, 5, kOwn}}};
  const auto reads = run(loader, lists);
  EXPECT_THAT(lists[0].blocks, ElementsAre(3, 4, kOwn));
  EXPECT_EQ(reads[0].missed.blocks_skipped, 1);
  EXPECT_EQ(reads[0].missed.sum, 0);
}

TEST(BlockLoader, AStoreWithoutAHomeNeedsNothing) {
  const auto kv = KVCacheManager::create(spec(), 1 << 20).value();
  const SequenceId id = kv->open();
  ASSERT_TRUE(kv->extend(id, 40));
  SequenceRows rows;
  rows.first_position = 39;
  rows.num_rows = 1;
  rows.tables = {kv->table(id, 0)};
  BlockLoader loader(OnMiss{0});
  std::vector<std::int32_t> blocks = {0, 2};
  std::vector<SelectedBlocks> selected = {{0, 39, 0, true, blocks, {}, {}}};
  loader.begin_step(*kv, std::span(&rows, 1));
  loader.on_selected(0, selected);
  EXPECT_EQ(selected[0].blocks.size(), 2U);
  EXPECT_EQ(loader.end_step().at(0).blocks_read, 0);
}

}  // namespace
}  // namespace karez
