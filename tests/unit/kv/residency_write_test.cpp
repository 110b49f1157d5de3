// Home that is slow, hangs or fails when blocks are on their way there.
#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <vector>

#include "support/tier/residency_fixture.h"

namespace karez::test {
namespace residency_write_test {

class ResidencyWrite : public ResidencyFixture {
 protected:
  void hang() {
    tier_->holds_writes = true;
    tier_->is_silent = true;
  }
};

TEST_F(ResidencyWrite, SlotsOfIdleBlocksThatAreBeingWrittenAreNoRoomYet) {
  hang();
  const int a = open(8);
  std::vector<BlockId> cached;
  for (int i = 0; i < 8; ++i) {
    cached.push_back(block(a, i));
    kv_->cache(cached.back());
  }
  close(a);
  EXPECT_EQ(kv_->stats().slots_idle, 8);
  EXPECT_EQ(kv_->slots_available(), 8) << "when the writes have ended";
  sequences_.push_back(kv_->open());
  const Clock::TimePoint start = clock_.now();
  EXPECT_FALSE(kv_->extend(sequences_[0], kBlockSize));
  const Clock::TimePoint end = clock_.now();
  EXPECT_GT(end, start);
  EXPECT_FALSE(kv_->extend(sequences_[0], kBlockSize));
  EXPECT_EQ(clock_.now(), end) << "it is not waited for again";
  EXPECT_EQ(kv_->check_invariants(), "");

  tier_->let_go();
  EXPECT_TRUE(kv_->extend(sequences_[0], kBlockSize));
  EXPECT_EQ(clock_.now(), end);
  EXPECT_EQ(kv_->check_invariants(), "");
  for (const BlockId id : cached) {
    EXPECT_TRUE(kv_->is_cached(id)) << "they are at home";
    kv_->uncache(id);
  }
}

TEST_F(ResidencyWrite, ABlockThatIsBeingWrittenForTooLongIsNotWrittenTo) {
  hang();
  sequences_.push_back(kv_->open());
  ASSERT_TRUE(kv_->extend(sequences_[0], kBlockSize + 8));
  kv_->demote(sequences_[0]);
  EXPECT_FALSE(kv_->extend(sequences_[0], 1));
  const Clock::TimePoint end = clock_.now();
  EXPECT_FALSE(kv_->extend(sequences_[0], 1));
  EXPECT_EQ(clock_.now(), end);
  EXPECT_EQ(kv_->num_tokens(sequences_[0]), kBlockSize + 8);
  EXPECT_EQ(kv_->check_invariants(), "");
  tier_->let_go();
  EXPECT_TRUE(kv_->extend(sequences_[0], 1));
  EXPECT_FALSE(residency_->is_any_home(block(0, 1)));
}

TEST_F(ResidencyWrite, AnAnswerOfTheTierMakesItWorthWaitingForAgain) {
  hang();
  open(4);
  residency_->settle();
  tier_->let_go();
  residency_->advance();
  open(4);
  const Clock::TimePoint start = clock_.now();
  residency_->settle();
  EXPECT_GT(clock_.now(), start);
  EXPECT_EQ(residency_->stats().blocks_clean, 4);
}

// In the same load, though the pause after a failure is not over and nothing is on its way.
TEST_F(ResidencyWrite, ALoadTakesTheSlotsOfBlocksWhoseWritesFailedOnce) {
  const int a = open(4);
  evict_all();
  tier_->holds_writes = true;
  tier_->writes_to_fail = 2;
  open(8);
  residency_->advance();  // which hands them to the tier
  tier_->let_go();
  residency_->advance();
  EXPECT_EQ(residency_->stats().write_failures, 8);
  EXPECT_EQ(residency_->stats().blocks_clean, 0);
  EXPECT_TRUE(read(a, {0, 1, 2, 3}));
  EXPECT_EQ(residency_->stats().blocks_lost, 0);
}

TEST_F(ResidencyWrite, AMediumThatTakesTooLittleIsAskedAgainLater) {
  tier_->writes_to_fail = std::numeric_limits<int>::max();
  tier_->failed_write = TransferStatus::kShort;
  open(8);
  residency_->advance();
  residency_->advance();
  const std::int64_t failures = residency_->stats().write_failures;
  EXPECT_GT(failures, 0);
  for (int i = 0; i < 100; ++i) {
    residency_->advance();
  }
  EXPECT_EQ(residency_->stats().write_failures, failures);
  tier_->writes_to_fail = 0;
  clock_.advance(std::chrono::seconds(2));
  residency_->settle();
  EXPECT_EQ(residency_->stats().blocks_clean, 8);
}

TEST_F(ResidencyWrite, AMediumThatGoesOnFailingIsWaitedForOnce) {
  tier_->writes_to_fail = std::numeric_limits<int>::max();
  open(8);
  const Clock::TimePoint start = clock_.now();
  sequences_.push_back(kv_->open());
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(kv_->extend(sequences_[1], kBlockSize));
  }
  EXPECT_EQ(clock_.now(), start) << "open() has waited";
  tier_->writes_to_fail = 0;
  clock_.advance(std::chrono::seconds(2));
  EXPECT_TRUE(kv_->extend(sequences_[1], kBlockSize));
}

}  // namespace residency_write_test
}  // namespace karez::test
