// Windows that are replaced by new blocks, as the store sees it: tables, references, slots, home.
// What the bytes mean is others' business; here a block is filled with one number.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "kv/compression_schedule.h"
#include "kv/kv_cache_manager.h"
#include "kv/prefix_cache.h"
#include "kv/tier/host_tier.h"

namespace karez {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::IsEmpty;

using Blocks = std::vector<BlockId>;
using Pages = std::vector<std::uint8_t>;

// Group 0: layers 0 and 2, all tokens. Group 1: layer 1 with a window of 40. One head.
KVCacheSpec mixed_spec() {
  KVCacheSpec spec;
  spec.num_layers = 3;
  spec.num_kv_heads = 1;
  spec.head_dim = 16;
  spec.layer_windows = {0, 40, 0};
  return spec;
}
constexpr int kGroup = 0;
constexpr std::int64_t kSlotsPerBlock = 2;

class KVCacheCompress : public testing::Test {
 protected:
  KVCacheCompress() { make(100); }

  void make(std::int64_t num_slots, std::unique_ptr<Tier> home = nullptr) {
    kv_.reset();
    kv_ = KVCacheManager::create(mixed_spec(),
                                 num_slots * static_cast<std::int64_t>(mixed_spec().slot_bytes()),
                                 std::move(home))
              .value();
    ASSERT_EQ(kv_->compressible_group(), kGroup);
  }
  void make_with_home(std::int64_t num_slots) {
    const std::size_t slot_bytes = mixed_spec().slot_bytes();
    make(num_slots, HostTier::create({.block_bytes = slot_bytes,
                                      .capacity_bytes = 400 * static_cast<std::int64_t>(slot_bytes),
                                      .num_workers = 0})
                        .value());
  }
  ~KVCacheCompress() override {
    if (kv_ != nullptr) {
      EXPECT_EQ(kv_->check_invariants(), "");
    }
  }

  SequenceId open(int num_tokens) {
    const SequenceId sequence = kv_->open();
    EXPECT_TRUE(kv_->extend(sequence, num_tokens));
    return sequence;
  }
  Blocks table(SequenceId sequence, int group = kGroup) const {
    const BlockTableView view = kv_->table(sequence, group);
    return {view.begin(), view.end()};
  }
  static Blocks slice(const Blocks& blocks, std::size_t begin, std::size_t end) {
    return {blocks.begin() + static_cast<std::ptrdiff_t>(begin),
            blocks.begin() + static_cast<std::ptrdiff_t>(end)};
  }
  static Blocks joined(std::initializer_list<Blocks> parts) {
    Blocks all;
    for (const Blocks& part : parts) {
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }
  NewBlocks take(std::int64_t count) {
    auto blocks = kv_->new_blocks(kGroup, count);
    EXPECT_TRUE(blocks.has_value());
    return std::move(*blocks);
  }
  static Blocks ids(const NewBlocks& blocks) {
    return {blocks.blocks().begin(), blocks.blocks().end()};
  }
  // Into so many new blocks, without an archive. Returns these.
  Blocks compress(SequenceId sequence, int begin, int num_tokens, std::int64_t num_kept) {
    NewBlocks kept = take(num_kept);
    const Blocks blocks = ids(kept);
    kv_->compress(sequence, kGroup, {begin, num_tokens}, std::move(kept), {}, {});
    EXPECT_EQ(kv_->check_invariants(), "");
    return blocks;
  }
  void fill(BlockId block, int content) {
    for (const int layer : {0, 2}) {
      std::memset(kv_->layer(layer).slot(0, block), content + layer, mixed_spec().slot_bytes());
    }
  }
  bool is_filled(BlockId block, int content) const {
    return std::ranges::all_of(std::vector{0, 2}, [&](int layer) {
      const std::byte* slot = kv_->layer(layer).slot(0, block);
      return std::all_of(slot, slot + mixed_spec().slot_bytes(), [&](std::byte byte) {
        return byte == static_cast<std::byte>(content + layer);
      });
    });
  }
  std::int64_t used() const { return kv_->stats().slots_used; }

  std::unique_ptr<KVCacheManager> kv_;
};

TEST_F(KVCacheCompress, NewBlocksTakeThePlaceOfTheWindows) {
  const SequenceId sequence = open(150);
  const Blocks before = table(sequence);
  const Blocks window_group = table(sequence, 1);
  const Blocks kept = compress(sequence, 32, 64, 2);
  EXPECT_EQ(table(sequence), joined({slice(before, 0, 2), kept, slice(before, 6, 10)}));
  EXPECT_EQ(table(sequence, 1), window_group) << "layers with a window are as they were";
  EXPECT_EQ(kv_->num_tokens(sequence), 150);
  EXPECT_EQ(kv_->num_gone(sequence), 32);
  EXPECT_EQ(kv_->archived(sequence).count(), 0);
  // Position 150 is in entry (150 - 32) / 16.
  EXPECT_EQ(kv_->table(sequence, kGroup).size(), 8U);
}

TEST_F(KVCacheCompress, TheNextWindowFollowsTheOneBefore) {
  const SequenceId sequence = open(200);
  const Blocks before = table(sequence);
  const Blocks first = compress(sequence, 16, 64, 1);
  const Blocks second = compress(sequence, 80, 64, 2);
  EXPECT_EQ(table(sequence), joined({slice(before, 0, 1), first, second, slice(before, 9, 13)}));
  EXPECT_EQ(kv_->num_gone(sequence), 16 * (3 + 2));
}

TEST_F(KVCacheCompress, FreedSlotsAreUsableAtOnce) {
  make(2 * 10 + 10);                      // ten blocks of both groups
  const SequenceId sequence = open(120);  // 8 blocks
  const SequenceId other = kv_->open();
  EXPECT_FALSE(kv_->extend(other, 64));
  const std::int64_t used_before = used();
  compress(sequence, 0, 96, 2);
  EXPECT_EQ(used(), used_before - 4 * kSlotsPerBlock);
  EXPECT_TRUE(kv_->extend(other, 64));
}

TEST_F(KVCacheCompress, ExtendAndSlotsNeededAreExactAfterwards) {
  const SequenceId sequence = open(100);
  compress(sequence, 16, 64, 1);
  for (int tokens = 101; tokens < 180; ++tokens) {
    const std::int64_t before = used();
    const std::int64_t needed = kv_->slots_needed(sequence, 1);
    const int step = tokens % 3 + 1;
    const std::int64_t needed_by_step = kv_->slots_needed(sequence, step);
    ASSERT_TRUE(kv_->extend(sequence, step));
    EXPECT_EQ(used() - before, needed_by_step);
    ASSERT_TRUE(kv_->truncate(sequence, tokens));
    EXPECT_LE(used() - before, std::max<std::int64_t>(needed, 0));
    EXPECT_EQ(kv_->table(sequence, kGroup).size(),
              static_cast<std::size_t>((tokens + 15) / 16 - 3));
    ASSERT_EQ(kv_->check_invariants(), "");
  }
}

TEST_F(KVCacheCompress, ARefusedExtendChangesNothing) {
  make(30);
  const SequenceId sequence = open(120);
  compress(sequence, 16, 96, 1);
  const Blocks before = table(sequence);
  const std::int64_t needed = kv_->slots_needed(sequence, 400);
  EXPECT_GT(needed, kv_->slots_available());
  EXPECT_FALSE(kv_->extend(sequence, 400));
  EXPECT_EQ(table(sequence), before);
  EXPECT_EQ(kv_->num_gone(sequence), 16 * 5);
}

TEST_F(KVCacheCompress, AForkKeepsTheOldBlocks) {
  const SequenceId parent = open(150);
  const Blocks before = table(parent);
  const SequenceId child = *kv_->fork(parent, 150);
  const std::int64_t used_before = used();
  const Blocks kept = compress(parent, 16, 64, 2);
  EXPECT_EQ(table(child), before);
  EXPECT_EQ(kv_->num_gone(child), 0);
  EXPECT_EQ(used(), used_before + 2 * kSlotsPerBlock) << "both are there";
  kv_->close(child);
  EXPECT_EQ(used(), used_before - 2 * kSlotsPerBlock);
  EXPECT_EQ(table(parent), joined({slice(before, 0, 1), kept, slice(before, 5, 10)}));
}

TEST_F(KVCacheCompress, AForkOfACompressedSequenceSharesWhatItHas) {
  const SequenceId parent = open(150);
  compress(parent, 16, 64, 2);
  const Blocks before = table(parent);
  const std::int64_t used_before = used();
  const SequenceId child = *kv_->fork(parent, 150);
  EXPECT_EQ(table(child), before);
  EXPECT_EQ(kv_->num_gone(child), 32);
  EXPECT_EQ(used(), used_before);
  // A last block that both have is copied as ever.
  ASSERT_TRUE(kv_->extend(child, 1));
  EXPECT_EQ(slice(table(child), 0, 7), slice(before, 0, 7));
  EXPECT_NE(table(child).back(), before.back());
  // Each goes on by itself.
  const Blocks kept = compress(child, 80, 32, 1);
  EXPECT_EQ(table(parent), before);
  EXPECT_EQ(kv_->num_gone(child), 48);
  kv_->close(parent);
  EXPECT_EQ(kv_->check_invariants(), "");
  EXPECT_EQ(table(child)[3], kept[0]);
}

TEST_F(KVCacheCompress, APinKeepsTheOldBlocks) {
  const SequenceId sequence = open(150);
  const Blocks before = table(sequence);
  fill(before[2], 7);
  const std::int64_t used_before = used();
  {
    const BlockPin pin = kv_->pin(sequence);
    compress(sequence, 16, 64, 2);
    EXPECT_EQ(used(), used_before + 2 * kSlotsPerBlock);
    EXPECT_TRUE(is_filled(before[2], 7));
  }
  EXPECT_EQ(used(), used_before - 2 * kSlotsPerBlock);
}

TEST_F(KVCacheCompress, NothingIsCutInTheCompressedPart) {
  const SequenceId sequence = open(150);
  compress(sequence, 16, 64, 2);
  const Blocks before = table(sequence);
  for (const int num_tokens : {0, 16, 17, 79}) {
    EXPECT_FALSE(kv_->truncate(sequence, num_tokens)) << num_tokens;
    EXPECT_FALSE(kv_->fork(sequence, num_tokens).has_value()) << num_tokens;
  }
  EXPECT_EQ(table(sequence), before);
  EXPECT_EQ(kv_->num_tokens(sequence), 150);
}

TEST_F(KVCacheCompress, ItIsCutDirectlyBehindTheCompressedPart) {
  KVCacheSpec spec = mixed_spec();
  spec.layer_windows = {};
  kv_ = KVCacheManager::create(spec, 100 * static_cast<std::int64_t>(spec.slot_bytes())).value();
  const SequenceId sequence = kv_->open();
  ASSERT_TRUE(kv_->extend(sequence, 150));
  compress(sequence, 16, 64, 2);
  const Blocks before = table(sequence);
  const auto child = kv_->fork(sequence, 80);
  ASSERT_TRUE(child.has_value());
  EXPECT_EQ(table(*child), slice(before, 0, 3));
  ASSERT_TRUE(kv_->truncate(sequence, 80));
  EXPECT_EQ(table(sequence), slice(before, 0, 3));
  EXPECT_EQ(kv_->num_gone(sequence), 32);
  ASSERT_TRUE(kv_->extend(sequence, 1));
  EXPECT_EQ(kv_->table(sequence, 0).size(), 4U);
  // A window may follow that was not there at the cut.
  ASSERT_TRUE(kv_->extend(sequence, 63));
  compress(sequence, 80, 32, 1);
  EXPECT_EQ(kv_->num_gone(sequence), 48);
}

TEST_F(KVCacheCompress, NewBlocksAreGivenBack) {
  EXPECT_EQ(used(), 0);
  {
    NewBlocks some = take(3);
    EXPECT_EQ(some.blocks().size(), 3U);
    EXPECT_EQ(used(), 3 * kSlotsPerBlock);
    EXPECT_EQ(kv_->check_invariants(), "");
    NewBlocks others = take(1);
    others = std::move(some);  // what it had goes with `some`
    EXPECT_EQ(others.blocks().size(), 3U);
    EXPECT_EQ(kv_->check_invariants(), "");
  }
  EXPECT_EQ(used(), 0);
  NewBlocks more = take(2);
  more.release();
  EXPECT_THAT(more.blocks(), IsEmpty());
  EXPECT_EQ(used(), 0);
  more.release();  // there is nothing left
  EXPECT_EQ(kv_->check_invariants(), "");
}

TEST_F(KVCacheCompress, NewBlocksAreAllOrNone) {
  make(11);
  EXPECT_EQ(kv_->slots_of_blocks(kGroup, 5), 10);
  EXPECT_FALSE(kv_->new_blocks(kGroup, 6).has_value());
  EXPECT_EQ(used(), 0);
  const NewBlocks all = take(5);
  EXPECT_FALSE(kv_->new_blocks(kGroup, 1).has_value());
  EXPECT_EQ(kv_->slots_available(), 1);
}

TEST_F(KVCacheCompress, NewBlocksTakeTheSlotsOfIdleOnes) {
  make(30);
  PrefixCache cache(*kv_, "model");
  std::vector<TokenId> tokens(64);
  std::iota(tokens.begin(), tokens.end(), 1);
  const SequenceId sequence = open(64);
  PrefixChain chain;
  cache.publish(sequence, "", tokens, chain);
  kv_->close(sequence);
  EXPECT_GT(kv_->stats().slots_idle, 0);
  const NewBlocks all = take(15);
  EXPECT_EQ(kv_->stats().slots_idle, 0);
  EXPECT_EQ(cache.num_entries(), 0);
  EXPECT_EQ(kv_->check_invariants(), "");
  EXPECT_EQ(cache.check_invariants(), "");
}

TEST_F(KVCacheCompress, CachedBlocksStayFindableAndWhole) {
  PrefixCache cache(*kv_, "model");
  std::vector<TokenId> tokens(97);
  std::iota(tokens.begin(), tokens.end(), 1);
  const SequenceId sequence = open(96);
  const Blocks before = table(sequence);
  for (std::size_t i = 0; i < before.size(); ++i) {
    fill(before[i], static_cast<int>(i) + 1);
  }
  PrefixChain chain;
  cache.publish(sequence, "", std::span(tokens).first(96), chain);
  for (const BlockId block : compress(sequence, 16, 64, 2)) {
    fill(block, 99);
    EXPECT_FALSE(kv_->is_cached(block));
  }
  EXPECT_EQ(cache.check_invariants(), "");
  const auto expect_found = [&] {
    const auto found = cache.match("", tokens);
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->num_tokens, 96);
    EXPECT_EQ(table(found->sequence), before);
    EXPECT_EQ(kv_->num_gone(found->sequence), 0);
    for (std::size_t i = 0; i < before.size(); ++i) {
      EXPECT_TRUE(is_filled(before[i], static_cast<int>(i) + 1)) << i;
    }
    kv_->close(found->sequence);
  };
  expect_found();
  kv_->close(sequence);
  expect_found();
  EXPECT_EQ(kv_->check_invariants(), "");
}

TEST_F(KVCacheCompress, WhatWasFoundInTheCacheIsCompressedToo) {
  PrefixCache cache(*kv_, "model");
  std::vector<TokenId> tokens(97);
  std::iota(tokens.begin(), tokens.end(), 1);
  const SequenceId first = open(96);
  PrefixChain chain;
  cache.publish(first, "", std::span(tokens).first(96), chain);
  kv_->close(first);
  const auto found = cache.match("", tokens);
  ASSERT_TRUE(found.has_value());
  const Blocks before = table(found->sequence);
  const std::int64_t idle = kv_->stats().slots_idle;
  compress(found->sequence, 0, 64, 2);
  EXPECT_EQ(kv_->stats().slots_idle, idle + 4 * kSlotsPerBlock)
      << "nobody uses them, and they are known";
  kv_->close(found->sequence);
  const auto again = cache.match("", tokens);
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(table(again->sequence), before);
  kv_->close(again->sequence);
}

TEST_F(KVCacheCompress, ArchivedPagesStandBeforeWhatWasKept) {
  const SequenceId sequence = open(150);
  const Blocks before = table(sequence);
  NewBlocks kept = take(2);
  NewBlocks archived = take(2);
  const Blocks k = ids(kept);
  const Blocks a = ids(archived);
  const std::int64_t used_before = used();
  // Eight blocks become two and six pages, of which a block holds four.
  kv_->compress(sequence, kGroup, {16, 128}, std::move(kept), std::move(archived),
                Pages{0, 1, 2, 3, 0, 1});
  EXPECT_EQ(kv_->check_invariants(), "");
  EXPECT_EQ(
      table(sequence),
      joined({slice(before, 0, 1), {a[0], a[0], a[0], a[0], a[1], a[1]}, k, slice(before, 9, 10)}));
  EXPECT_EQ(kv_->num_gone(sequence), 0) << "as many entries as before";
  EXPECT_EQ(used(), used_before - 8 * kSlotsPerBlock);
  const ArchivedEntries entries = kv_->archived(sequence);
  EXPECT_EQ(entries.begin, 1);
  EXPECT_EQ(entries.end, 7);
  EXPECT_THAT(entries.pages, ElementsAre(0, 1, 2, 3, 0, 1));
}

TEST_F(KVCacheCompress, PagesOfAllWindowsAreInOnePlace) {
  const SequenceId sequence = open(250);
  const Blocks before = table(sequence);
  std::vector<Blocks> kept;
  std::vector<Blocks> archived;
  for (const int begin : {32, 112}) {
    NewBlocks k = take(1);
    NewBlocks a = take(1);
    kept.push_back(ids(k));
    archived.push_back(ids(a));
    // Of five blocks one is kept, three become pages, one goes for good.
    kv_->compress(sequence, kGroup, {begin, 80}, std::move(k), std::move(a), Pages{0, 1, 2});
    ASSERT_EQ(kv_->check_invariants(), "");
  }
  const BlockId a = archived[0][0];
  const BlockId b = archived[1][0];
  EXPECT_EQ(
      table(sequence),
      joined({slice(before, 0, 2), {a, a, a, b, b, b}, kept[0], kept[1], slice(before, 12, 16)}));
  EXPECT_EQ(kv_->num_gone(sequence), 32);
  EXPECT_THAT(kv_->archived(sequence).pages, ElementsAre(0, 1, 2, 0, 1, 2));
  EXPECT_EQ(kv_->archived(sequence).begin, 2);
  EXPECT_EQ(kv_->archived(sequence).end, 8);

  // A fork shares the pages, and both may go first.
  const SequenceId child = *kv_->fork(sequence, 250);
  EXPECT_EQ(table(child), table(sequence));
  EXPECT_THAT(kv_->archived(child).pages, ElementsAreArray(kv_->archived(sequence).pages));
  EXPECT_FALSE(kv_->truncate(child, 191));
  const BlockPin pin = kv_->pin(child);
  kv_->close(sequence);
  EXPECT_EQ(kv_->check_invariants(), "");
  EXPECT_EQ(kv_->archived(child).count(), 6);
  kv_->close(child);
  EXPECT_EQ(kv_->check_invariants(), "");
}

TEST_F(KVCacheCompress, AWindowMayBeArchivedAsAWhole) {
  const SequenceId sequence = open(100);
  const Blocks before = table(sequence);
  NewBlocks archived = take(1);
  const BlockId a = archived.blocks()[0];
  kv_->compress(sequence, kGroup, {0, 32}, {}, std::move(archived), Pages{0, 1});
  EXPECT_EQ(table(sequence), joined({{a, a}, slice(before, 2, 7)}));
  EXPECT_EQ(kv_->check_invariants(), "");
  kv_->close(sequence);
  EXPECT_EQ(used(), 0);
}

TEST_F(KVCacheCompress, AStepReadsABlockOnceForAllItsPages) {
  const SequenceId sequence = open(250);
  const auto fewest_slots = [&](std::int64_t read_tokens) {
    std::int64_t slots = 0;
    while (kv_->most_step_tokens(sequence, read_tokens, slots) == 0) {
      ++slots;
    }
    EXPECT_EQ(kv_->most_step_tokens(sequence, read_tokens, slots), 6) << "the rest of its block";
    return slots;
  };
  constexpr std::int64_t kEverything = 1000;
  constexpr std::int64_t kOwnBlock = 3;  // in all layers
  EXPECT_EQ(fewest_slots(kEverything), 15 + kOwnBlock);
  // Five blocks become one and three pages in one.
  NewBlocks kept = take(1);
  NewBlocks archived = take(1);
  kv_->compress(sequence, kGroup, {32, 80}, std::move(kept), std::move(archived), Pages{0, 1, 2});
  EXPECT_EQ(fewest_slots(kEverything), 12 + kOwnBlock);
  EXPECT_EQ(fewest_slots(64), 4 + kOwnBlock);
  EXPECT_EQ(fewest_slots(16), 3 + kOwnBlock) << "the layer with a window reads as much";
  // Those of the next window keep their slots.
  const NewBlocks next = take(2);
  EXPECT_EQ(fewest_slots(kEverything), 12 + kOwnBlock + 2 * kSlotsPerBlock);
}

TEST_F(KVCacheCompress, ClosingGivesAllBack) {
  for (const bool with_archive : {false, true}) {
    const SequenceId sequence = open(200);
    NewBlocks kept = take(2);
    NewBlocks archived = with_archive ? take(1) : NewBlocks();
    kv_->compress(sequence, kGroup, {16, 96}, std::move(kept), std::move(archived),
                  with_archive ? Pages{0, 1, 2, 3} : Pages{});
    kv_->close(sequence);
    EXPECT_EQ(used(), 0);
    EXPECT_EQ(kv_->check_invariants(), "");
  }
}

TEST_F(KVCacheCompress, PackedBlocksGoHomeAndComeBack) {
  make_with_home(61);  // one is the store's own
  const SequenceId sequence = open(150);
  const Blocks before = table(sequence);
  for (std::size_t i = 0; i < before.size(); ++i) {
    fill(before[i], static_cast<int>(i) + 1);
  }
  kv_->write_home(sequence);
  kv_->residency()->settle();
  NewBlocks kept = take(2);
  NewBlocks archived = take(1);
  const Blocks fresh = joined({ids(archived), ids(kept)});
  for (std::size_t i = 0; i < fresh.size(); ++i) {
    fill(fresh[i], 100 + static_cast<int>(i));
    EXPECT_FALSE(kv_->residency()->is_any_home(fresh[i])) << "not before it is published";
  }
  kv_->compress(sequence, kGroup, {16, 96}, std::move(kept), std::move(archived),
                Pages{0, 1, 2, 3});
  EXPECT_EQ(kv_->check_invariants(), "");
  kv_->write_home(sequence);
  kv_->residency()->advance();
  kv_->residency()->settle();
  for (const BlockId block : fresh) {
    EXPECT_TRUE(kv_->residency()->is_any_home(block));
  }

  kv_->demote(sequence);
  kv_->residency()->settle();
  const SequenceId other = kv_->open();
  ASSERT_TRUE(kv_->extend(other, 310)) << "takes all slots: 20 blocks of each group";
  for (const BlockId block : fresh) {
    EXPECT_TRUE(kv_->layer(0).slots_of_head(0)[block.value].is_none());
  }
  kv_->close(other);
  const Blocks now = table(sequence);
  for (const int layer : {0, 2}) {
    kv_->residency()->begin_layer(layer);
    for (const BlockId block : now) {
      kv_->residency()->need(0, block);
    }
    ASSERT_TRUE(kv_->residency()->load().empty());
  }
  kv_->residency()->end_step();
  for (std::size_t i = 0; i < fresh.size(); ++i) {
    EXPECT_TRUE(is_filled(fresh[i], 100 + static_cast<int>(i)));
  }
  EXPECT_TRUE(is_filled(before[0], 1));
  EXPECT_TRUE(is_filled(before[8], 9));
  kv_->close(sequence);
  EXPECT_EQ(kv_->residency()->stats().home_bytes_used, 0);
}

TEST_F(KVCacheCompress, WhatIsStillOnItsWayHomeIsGivenUpAllTheSame) {
  make_with_home(80);
  const SequenceId sequence = open(150);
  kv_->write_home(sequence);  // asked for, and not begun
  compress(sequence, 16, 96, 1);
  kv_->residency()->advance();
  EXPECT_EQ(kv_->check_invariants(), "");
  kv_->write_home(sequence);
  kv_->residency()->advance();
  kv_->residency()->settle();
  EXPECT_EQ(kv_->check_invariants(), "");
  kv_->close(sequence);
  kv_->residency()->settle();
  EXPECT_EQ(used(), 0);
  EXPECT_EQ(kv_->residency()->stats().home_bytes_used, 0);
}

TEST_F(KVCacheCompress, NewBlocksStayInTheFastTier) {
  make_with_home(60);
  const NewBlocks kept = take(2);
  fill(kept.blocks()[0], 5);
  fill(kept.blocks()[1], 6);
  const SequenceId sequence = kv_->open();
  while (kv_->extend(sequence, 16)) {
    kv_->write_home(sequence);
    kv_->residency()->advance();
    if (kv_->num_tokens(sequence) > 600) {
      break;
    }
  }
  EXPECT_GT(kv_->num_tokens(sequence), 600) << "its own blocks give way";
  EXPECT_TRUE(is_filled(kept.blocks()[0], 5));
  EXPECT_TRUE(is_filled(kept.blocks()[1], 6));
  EXPECT_EQ(kv_->check_invariants(), "");
}

TEST(CompressionSchedule, WhatASequenceHoldsAtMostIsWhatItHeld) {
  const CompressionSchedule schedule{
      .first_position = 32, .window_tokens = 64, .kept_tokens = 32, .recent_tokens = 20};
  EXPECT_EQ(CompressionSchedule{}.most_tokens_held(5000), 5000);
  EXPECT_EQ(schedule.most_tokens_held(10), 10);
  EXPECT_EQ(schedule.most_tokens_held(115), 115);
  for (int num_tokens = 116; num_tokens < 2000; ++num_tokens) {
    const int windows = (num_tokens - 20 - 32) / 64;
    // While the last of them was packed.
    const int peak = 32 + (windows - 1) * 32 + 64 + 20 + 32;
    const int now = num_tokens - windows * 32;
    EXPECT_GE(schedule.most_tokens_held(num_tokens), std::min(num_tokens, std::max(peak, now)))
        << num_tokens;
    EXPECT_LE(schedule.most_tokens_held(num_tokens), num_tokens);
  }
}

}  // namespace
}  // namespace karez
