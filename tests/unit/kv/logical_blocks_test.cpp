#include "kv/logical_blocks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <set>
#include <string>
#include <vector>

namespace karez {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Group 0: layers 0 and 2, window 32. Group 1: layer 1. Two heads, so 4 and 2 slots a block.
KVCacheSpec two_groups() {
  KVCacheSpec spec;
  spec.num_layers = 3;
  spec.num_kv_heads = 2;
  spec.head_dim = 16;
  spec.layer_windows = {32, 0, 32};
  return spec;
}

LogicalBlocks make_blocks(const KVCacheSpec& spec, std::int64_t num_slots) {
  auto blocks =
      LogicalBlocks::create(spec, num_slots * static_cast<std::int64_t>(spec.slot_bytes()));
  EXPECT_TRUE(blocks.has_value());
  return std::move(*blocks);
}

std::vector<BlockId> allocate(LogicalBlocks& blocks, int group, std::size_t count) {
  std::vector<BlockId> ids(count);
  EXPECT_TRUE(blocks.allocate(group, ids));
  return ids;
}

std::int64_t slot_index(const LogicalBlocks& blocks, int layer, int head, BlockId block) {
  const KVLayerView view = blocks.layer(layer);
  return (view.slot(head, block) - view.base()) / static_cast<std::int64_t>(view.slot_bytes());
}

TEST(LogicalBlocks, BlocksTakenTogetherAreNeighboursInEachHead) {
  LogicalBlocks blocks = make_blocks(two_groups(), 20);
  const std::vector<BlockId> ids = allocate(blocks, 0, 3);
  std::int64_t next = 0;
  for (const int layer : {0, 2}) {
    for (const int head : {0, 1}) {
      for (const BlockId block : ids) {
        EXPECT_EQ(slot_index(blocks, layer, head, block), next++);
      }
    }
  }
  EXPECT_EQ(blocks.pool().num_held(), 12);
}

TEST(LogicalBlocks, GroupsShareThePoolAndTheIdSpace) {
  LogicalBlocks blocks = make_blocks(two_groups(), 20);
  EXPECT_EQ(blocks.num_ids(), 20U / 4 + 20U / 2);
  EXPECT_EQ(blocks.slots_per_block(0), 4);
  EXPECT_EQ(blocks.slots_per_block(1), 2);
  std::set<BlockId> ids;
  std::set<std::int64_t> slots;
  for (const BlockId block : allocate(blocks, 0, 4)) {
    ids.insert(block);
    for (const int layer : {0, 2}) {
      slots.insert(slot_index(blocks, layer, 0, block));
      slots.insert(slot_index(blocks, layer, 1, block));
    }
  }
  for (const BlockId block : allocate(blocks, 1, 2)) {
    ids.insert(block);
    slots.insert(slot_index(blocks, 1, 0, block));
    slots.insert(slot_index(blocks, 1, 1, block));
  }
  EXPECT_EQ(ids.size(), 6U);
  EXPECT_EQ(slots.size(), 20U);
  EXPECT_EQ(blocks.pool().num_free(), 0);
  EXPECT_EQ(blocks.num_used(), 6);
}

TEST(LogicalBlocks, EachGroupMayFillTheWholePool) {
  for (const int group : {0, 1}) {
    LogicalBlocks blocks = make_blocks(two_groups(), 23);
    const auto count = static_cast<std::size_t>(23 / blocks.slots_per_block(group));
    allocate(blocks, group, count);
    std::vector<BlockId> one(1);
    EXPECT_FALSE(blocks.allocate(group, one));
  }
}

TEST(LogicalBlocks, AllocateTakesAllOrNothing) {
  LogicalBlocks blocks = make_blocks(two_groups(), 11);
  std::vector<BlockId> ids(3, BlockId(99));
  EXPECT_FALSE(blocks.allocate(0, ids));
  EXPECT_EQ(ids, std::vector<BlockId>(3, BlockId(99)));
  EXPECT_EQ(blocks.pool().num_held(), 0);
  EXPECT_EQ(blocks.num_used(), 0);
}

TEST(LogicalBlocks, TheLastReferenceFreesTheSlots) {
  LogicalBlocks blocks = make_blocks(two_groups(), 8);
  const BlockId block = allocate(blocks, 0, 1)[0];
  EXPECT_TRUE(blocks.is_last_reference(block));
  blocks.add_reference(block);
  EXPECT_TRUE(blocks.is_shared(block));
  EXPECT_FALSE(blocks.is_last_reference(block));
  EXPECT_EQ(blocks.num_shared(), 1);
  blocks.drop_reference(block);
  EXPECT_EQ(blocks.num_shared(), 0);
  EXPECT_EQ(blocks.pool().num_held(), 4);
  blocks.drop_reference(block);
  EXPECT_EQ(blocks.pool().num_held(), 0);
}

TEST(LogicalBlocks, APinKeepsTheSlotsAfterTheLastReference) {
  LogicalBlocks blocks = make_blocks(two_groups(), 8);
  const BlockId block = allocate(blocks, 0, 1)[0];
  blocks.pin(block);
  blocks.pin(block);
  EXPECT_FALSE(blocks.is_last_reference(block));
  blocks.drop_reference(block);
  EXPECT_EQ(blocks.pool().num_held(), 4);
  EXPECT_NE(allocate(blocks, 0, 1)[0], block);
  blocks.unpin(block);
  EXPECT_EQ(blocks.pool().num_held(), 8);
  blocks.unpin(block);
  EXPECT_EQ(blocks.pool().num_held(), 4);
  EXPECT_EQ(blocks.num_pins(), 0);
}

TEST(LogicalBlocks, CopyTakesTheBytesOfAllLayersAndHeads) {
  LogicalBlocks blocks = make_blocks(two_groups(), 8);
  const std::vector<BlockId> ids = allocate(blocks, 0, 2);
  const std::size_t bytes = blocks.pool().slot_bytes();
  for (const int layer : {0, 2}) {
    for (const int head : {0, 1}) {
      std::memset(blocks.layer(layer).slot(head, ids[0]), layer * 2 + head + 1, bytes);
    }
  }
  blocks.copy(ids[0], ids[1]);
  for (const int layer : {0, 2}) {
    for (const int head : {0, 1}) {
      EXPECT_EQ(std::memcmp(blocks.layer(layer).slot(head, ids[1]),
                            blocks.layer(layer).slot(head, ids[0]), bytes),
                0);
      EXPECT_EQ(*blocks.layer(layer).slot(head, ids[1]),
                static_cast<std::byte>(layer * 2 + head + 1));
    }
  }
}

TEST(LogicalBlocks, LayersKnowTheirGroup) {
  const LogicalBlocks blocks = make_blocks(two_groups(), 8);
  EXPECT_EQ(blocks.group_of_layer(0), 0);
  EXPECT_EQ(blocks.group_of_layer(1), 1);
  EXPECT_EQ(blocks.group_of_layer(2), 0);
  EXPECT_THAT(blocks.groups()[0].layers, ElementsAre(0, 2));
}

// Four bytes for each slot and group, about twenty for each block, and its links.
TEST(LogicalBlocks, MetadataIsAboutFourBytesForEachSlotAndGroup) {
  constexpr std::int64_t kSlots = 120'000;
  // 30 layers x 3 heads, as SmolLM2-135M.
  KVCacheSpec spec = two_groups();
  spec.num_layers = 30;
  spec.num_kv_heads = 3;
  spec.layer_windows = {};
  EXPECT_LT(make_blocks(spec, kSlots).metadata_bytes(), 4.5 * kSlots);
  spec.layer_windows.assign(30, 512);
  spec.layer_windows[5] = 0;
  EXPECT_LT(make_blocks(spec, kSlots).metadata_bytes(), (8.0 + 28.2 / 3 + 0.5) * kSlots);
}

TEST(LogicalBlocks, CheckFindsAReferenceThatNobodyHolds) {
  LogicalBlocks blocks = make_blocks(two_groups(), 20);
  std::vector<std::uint32_t> references(blocks.num_ids());
  EXPECT_EQ(blocks.check(references), "");
  const BlockId block = allocate(blocks, 1, 1)[0];
  EXPECT_THAT(blocks.check(references), HasSubstr("has 1 references, 0 are expected"));
  references[block.value] = 1;
  EXPECT_EQ(blocks.check(references), "");
  references[0] = 1;
  EXPECT_THAT(blocks.check(references), HasSubstr("block 0 has 0 references, 1 are expected"));
  references.pop_back();
  EXPECT_NE(blocks.check(references), "");
}

TEST(LogicalBlocksDeathTest, MisuseIsABug) {
  LogicalBlocks blocks = make_blocks(two_groups(), 20);
  EXPECT_DEATH(blocks.add_reference(BlockId(0)), "cannot be shared");
  EXPECT_DEATH(blocks.drop_reference(BlockId(0)), "no reference to drop");
  EXPECT_DEATH(blocks.pin(BlockId(0)), "cannot be pinned");
  EXPECT_DEATH(blocks.unpin(BlockId(0)), "no pin to drop");
  const BlockId first = allocate(blocks, 0, 1)[0];
  const BlockId second = allocate(blocks, 1, 1)[0];
  EXPECT_DEATH(blocks.copy(first, second), "different layer groups");
}

}  // namespace
}  // namespace karez
