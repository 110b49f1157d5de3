#include "kv/prefix_cache.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "kv/kv_cache_manager.h"

namespace karez {
namespace {

std::vector<TokenId> count_from(TokenId first, int num_tokens) {
  std::vector<TokenId> tokens(static_cast<std::size_t>(num_tokens));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

class PrefixCacheTest : public testing::Test {
 protected:
  void start(int num_slots, std::vector<int> windows = {0}, int hash_bits = 128) {
    KVCacheSpec spec;
    spec.num_layers = static_cast<int>(windows.size());
    spec.num_kv_heads = 1;
    spec.head_dim = 16;
    spec.layer_windows = std::move(windows);
    cache_.reset();
    kv_ = std::move(
        KVCacheManager::create(spec, static_cast<std::int64_t>(spec.slot_bytes()) * num_slots)
            .value());
    cache_ = std::make_unique<PrefixCache>(*kv_, "model", hash_bits);
  }

  // A sequence that is computed in steps of step_tokens and published after each.
  SequenceId compute(const std::vector<TokenId>& tokens, const std::string& salt = "",
                     int step_tokens = 16) {
    const SequenceId sequence = kv_->open();
    PrefixChain chain;
    const int size = static_cast<int>(tokens.size());
    for (int done = 0; done < size;) {
      const int count = std::min(step_tokens, size - done);
      EXPECT_TRUE(kv_->extend(sequence, count));
      done += count;
      cache_->publish(sequence, salt, std::span(tokens).first(static_cast<std::size_t>(done)),
                      chain);
    }
    return sequence;
  }
  // Tokens found; the sequence is closed again.
  int found(const std::vector<TokenId>& tokens, const std::string& salt = "") {
    const auto match = cache_->match(salt, tokens);
    EXPECT_EQ(kv_->check_invariants(), "");
    EXPECT_EQ(cache_->check_invariants(), "");
    if (!match) {
      return 0;
    }
    EXPECT_EQ(kv_->num_tokens(match->sequence), match->num_tokens);
    kv_->close(match->sequence);
    return match->num_tokens;
  }

  std::unique_ptr<KVCacheManager> kv_;
  std::unique_ptr<PrefixCache> cache_;
};

TEST_F(PrefixCacheTest, FindsTheFullBlocksOfAClosedSequence) {
  start(10);
  kv_->close(compute(count_from(0, 40)));
  EXPECT_EQ(kv_->stats().slots_used, 0);
  EXPECT_EQ(kv_->stats().slots_idle, 2) << "the partial block is not kept";
  EXPECT_EQ(found(count_from(0, 100)), 32);
  EXPECT_EQ(found(count_from(0, 33)), 32);
  EXPECT_EQ(found(count_from(0, 32)), 16) << "never the whole prompt";
  EXPECT_EQ(found(count_from(0, 31)), 16);
  EXPECT_EQ(found(count_from(0, 16)), 0);
  EXPECT_EQ(found({}), 0);
  EXPECT_EQ(found(count_from(1, 40)), 0);
}

TEST_F(PrefixCacheTest, FindsNothingThatIsNotPublished) {
  start(10);
  const auto tokens = count_from(0, 40);
  const SequenceId sequence = kv_->open();
  ASSERT_TRUE(kv_->extend(sequence, 40));
  EXPECT_EQ(found(tokens), 0);
  PrefixChain chain;
  cache_->publish(sequence, "", std::span(tokens).first(31), chain);
  EXPECT_EQ(found(tokens), 16);
  kv_->close(sequence);
  EXPECT_EQ(kv_->stats().slots_idle, 1);
}

TEST_F(PrefixCacheTest, SharesBlocksOfSequencesThatStillRun) {
  start(10);
  const SequenceId first = compute(count_from(0, 64));
  const auto match = cache_->match("", count_from(0, 64));
  ASSERT_TRUE(match);
  EXPECT_EQ(kv_->stats().slots_used, 4);
  EXPECT_TRUE(std::ranges::equal(kv_->table(match->sequence, 0), kv_->table(first, 0).first(3)));
  kv_->close(first);
  EXPECT_EQ(kv_->stats().slots_used, 3);
  kv_->close(match->sequence);
  EXPECT_EQ(kv_->stats().slots_used, 0);
}

TEST_F(PrefixCacheTest, SaltsDoNotMix) {
  start(10);
  kv_->close(compute(count_from(0, 40), "a"));
  EXPECT_EQ(found(count_from(0, 40), ""), 0);
  EXPECT_EQ(found(count_from(0, 40), "b"), 0);
  EXPECT_EQ(found(count_from(0, 40), "a"), 32);
}

TEST_F(PrefixCacheTest, AFoundPrefixIsNeverTaken) {
  start(6);
  kv_->close(compute(count_from(0, 64)));
  const auto match = cache_->match("", count_from(0, 64));
  ASSERT_TRUE(match);
  const SequenceId other = kv_->open();
  EXPECT_FALSE(kv_->extend(other, 4 * 16)) << "three blocks are in use, one is idle, two are free";
  EXPECT_EQ(kv_->stats().slots_idle, 1) << "a refusal takes nothing";
  EXPECT_TRUE(kv_->extend(other, 3 * 16));
  EXPECT_EQ(kv_->stats().slots_idle, 0);
  EXPECT_EQ(found(count_from(0, 100)), 48);
  kv_->close(match->sequence);
  kv_->close(other);
}

TEST_F(PrefixCacheTest, TheOldestGoesFirstAndFromItsEnd) {
  start(8);
  kv_->close(compute(count_from(0, 64)));
  kv_->close(compute(count_from(1000, 64)));
  EXPECT_EQ(found(count_from(0, 65)), 64);  // used last now
  const SequenceId other = kv_->open();
  ASSERT_TRUE(kv_->extend(other, 2 * 16));
  EXPECT_EQ(found(count_from(1000, 65)), 32) << "children before parents";
  EXPECT_EQ(found(count_from(0, 65)), 64);
  ASSERT_TRUE(kv_->extend(other, 3 * 16));
  EXPECT_EQ(found(count_from(1000, 65)), 0);
  EXPECT_EQ(found(count_from(0, 65)), 48);
  EXPECT_EQ(cache_->num_entries(), 3);
  kv_->close(other);
}

TEST_F(PrefixCacheTest, ACachedBlockIsNotWrittenAgain) {
  start(10);
  const auto tokens = count_from(0, 48);
  const SequenceId sequence = compute(tokens);
  const BlockId second = kv_->table(sequence, 0)[1];
  ASSERT_TRUE(kv_->truncate(sequence, 20));
  ASSERT_TRUE(kv_->extend(sequence, 1));
  EXPECT_NE(kv_->table(sequence, 0)[1], second) << "the writer got a copy";
  EXPECT_EQ(found(count_from(0, 49)), 48);
  kv_->close(sequence);
}

TEST_F(PrefixCacheTest, EqualBlocksOfTwoSequencesAreKeptOnce) {
  start(10);
  const SequenceId first = compute(count_from(0, 40));
  const SequenceId second = compute(count_from(0, 40));
  EXPECT_EQ(cache_->num_entries(), 2);
  kv_->close(first);
  kv_->close(second);
  EXPECT_EQ(kv_->stats().slots_idle, 2);
}

TEST_F(PrefixCacheTest, GoesOnWhenItsOwnWayWasTaken) {
  start(8);
  const auto tokens = count_from(0, 64);
  const SequenceId first = compute(count_from(0, 32));
  const SequenceId second = kv_->open();  // computes the same two blocks beside it
  PrefixChain chain;
  ASSERT_TRUE(kv_->extend(second, 32));
  cache_->publish(second, "", std::span(tokens).first(32), chain);
  kv_->close(first);
  const SequenceId other = kv_->open();
  ASSERT_TRUE(kv_->extend(other, 5 * 16));  // takes an idle block, the second of the path
  EXPECT_EQ(found(tokens), 16);
  kv_->close(other);
  ASSERT_TRUE(kv_->extend(second, 16));
  cache_->publish(second, "", std::span(tokens).first(48), chain);
  EXPECT_EQ(found(tokens), 48);
  kv_->close(second);
}

// Cases B3: with 4 bits almost every block has a namesake.
TEST_F(PrefixCacheTest, CollisionsAreMisses) {
  start(400, {0}, /*hash_bits=*/4);
  for (TokenId first = 0; first < 40; ++first) {
    kv_->close(compute(count_from(first * 1000, 64)));
  }
  EXPECT_LE(cache_->num_entries(), 16);
  int total = 0;
  for (TokenId first = 0; first < 40; ++first) {
    total += found(count_from(first * 1000, 65));
    EXPECT_EQ(found(count_from(first * 1000 + 500, 65)), 0);
    // The second block of one prefix after the first block of another.
    auto mixed = count_from(first * 1000, 16);
    const auto tail = count_from((first + 1) % 40 * 1000 + 16, 49);
    mixed.insert(mixed.end(), tail.begin(), tail.end());
    EXPECT_LE(found(mixed), 16);
  }
  EXPECT_GT(total, 0);
  EXPECT_LE(total, 16 * 16);
}

// Cases B5: a window of 40 tokens beside full attention.
TEST_F(PrefixCacheTest, AWindowNeedsOnlyTheBlocksThatTheNextRowReads) {
  start(100, {0, 40});
  kv_->close(compute(count_from(0, 160)));
  EXPECT_EQ(found(count_from(0, 161)), 160);
  EXPECT_EQ(found(count_from(0, 100)), 96) << "released blocks are still there";
  const auto match = cache_->match("", count_from(0, 161));
  ASSERT_TRUE(match);
  const BlockTableView window = kv_->table(match->sequence, 1);
  EXPECT_TRUE(window[6].is_none());
  EXPECT_FALSE(window[7].is_none()) << "a row at 160 reads from 121";
  kv_->close(match->sequence);
}

TEST_F(PrefixCacheTest, AWindowWithAGapIsNoHit) {
  start(20, {0, 40});
  kv_->close(compute(count_from(0, 160)));  // 10 full-attention blocks, 10 of the window
  EXPECT_EQ(kv_->stats().slots_idle, 20);
  const SequenceId other = kv_->open();
  ASSERT_TRUE(kv_->extend(other, 16 * 3));  // takes the six blocks that left the window first
  EXPECT_EQ(found(count_from(0, 161)), 160) << "the end of the conversation has its window";
  EXPECT_EQ(found(count_from(0, 100)), 0) << "the rows before position 96 are gone";
  kv_->close(other);
}

TEST_F(PrefixCacheTest, WindowsAloneWork) {
  start(40, {20});
  kv_->close(compute(count_from(0, 160)));
  EXPECT_EQ(found(count_from(0, 161)), 160);
  const SequenceId other = kv_->open();
  ASSERT_TRUE(kv_->extend(other, 16 * 38));
  EXPECT_EQ(found(count_from(0, 161)), 160) << "two blocks are enough";
  kv_->close(other);
}

TEST_F(PrefixCacheTest, GivesEverythingBackWhenItEnds) {
  start(10);
  kv_->close(compute(count_from(0, 64)));
  cache_.reset();
  EXPECT_EQ(kv_->stats().slots_idle, 0);
  EXPECT_EQ(kv_->slots_available(), 10);
  EXPECT_EQ(kv_->check_invariants(), "");
}

TEST(PrefixHash, DependsOnEveryInput) {
  const PrefixHash root = root_hash("a", "bc");
  EXPECT_NE(root, root_hash("ab", "c")) << "no two pairs have the same bytes";
  EXPECT_NE(root, root_hash("a", ""));
  auto tokens = count_from(0, kBlockSize);
  const auto view = [&] { return std::span<const TokenId, kBlockSize>(tokens); };
  const PrefixHash block = block_hash(root, view());
  EXPECT_NE(block, block_hash(root_hash("a", ""), view()));
  tokens[15] += 1;
  EXPECT_NE(block, block_hash(root, view()));
  EXPECT_EQ(cut_hash(block, 128), block);
  EXPECT_EQ(cut_hash(block, 64), (PrefixHash{block.low, 0}));
  EXPECT_EQ(cut_hash(block, 8), (PrefixHash{block.low & 0xFF, 0}));
  EXPECT_EQ(cut_hash(block, 72), (PrefixHash{block.low, block.high & 0xFF}));
}

}  // namespace
}  // namespace karez
