#include "kv/block_pin.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "kv/kv_cache_manager.h"

namespace karez {
namespace {

class BlockPinTest : public testing::Test {
 protected:
  BlockPinTest() {
    KVCacheSpec spec;
    spec.num_layers = 2;
    spec.num_kv_heads = 1;
    spec.head_dim = 16;
    cache_ =
        std::move(*KVCacheManager::create(spec, 10 * static_cast<std::int64_t>(spec.slot_bytes())));
  }

  // A pin on num_blocks blocks that no sequence uses any more.
  BlockPin orphan(int num_blocks) {
    const SequenceId sequence = cache_->open();
    EXPECT_TRUE(cache_->extend(sequence, num_blocks * kBlockSize));
    BlockPin pin = cache_->pin(sequence);
    cache_->close(sequence);
    return pin;
  }
  std::int64_t blocks_used() const {
    EXPECT_EQ(cache_->check_invariants(), "");
    return cache_->stats().blocks_used;
  }

  std::unique_ptr<KVCacheManager> cache_;
};

TEST_F(BlockPinTest, KeepsBlocksUntilItIsDestroyed) {
  {
    const BlockPin pin = orphan(3);
    EXPECT_EQ(blocks_used(), 3);
  }
  EXPECT_EQ(blocks_used(), 0);
}

TEST_F(BlockPinTest, ReleaseUnpinsOnce) {
  BlockPin pin = orphan(3);
  pin.release();
  EXPECT_EQ(blocks_used(), 0);
  pin.release();
  EXPECT_EQ(blocks_used(), 0);
}

TEST_F(BlockPinTest, MovingPassesThePromiseOn) {
  BlockPin pin = orphan(2);
  BlockPin moved(std::move(pin));
  EXPECT_EQ(blocks_used(), 2);
  BlockPin assigned;
  assigned = std::move(moved);
  EXPECT_EQ(blocks_used(), 2);
  assigned = BlockPin();
  EXPECT_EQ(blocks_used(), 0);
}

TEST_F(BlockPinTest, PinsOfTheSameBlocksCount) {
  const SequenceId sequence = cache_->open();
  ASSERT_TRUE(cache_->extend(sequence, 20));
  BlockPin first = cache_->pin(sequence);
  BlockPin second = cache_->pin(sequence);
  cache_->close(sequence);
  first.release();
  EXPECT_EQ(blocks_used(), 2);
  second.release();
  EXPECT_EQ(blocks_used(), 0);
}

TEST_F(BlockPinTest, PinnedBlocksAreNotHandedOut) {
  const BlockPin pin = orphan(4);
  const SequenceId sequence = cache_->open();
  EXPECT_FALSE(cache_->extend(sequence, 2 * kBlockSize));
  EXPECT_TRUE(cache_->extend(sequence, kBlockSize));
}

TEST_F(BlockPinTest, AnEmptySequencePinsNothing) {
  const BlockPin pin = cache_->pin(cache_->open());
  cache_.reset();
}

TEST_F(BlockPinTest, OutlivingTheManagerIsABug) {
  const BlockPin pin = orphan(1);
  EXPECT_DEATH(cache_.reset(), "outlives");
}

}  // namespace
}  // namespace karez
