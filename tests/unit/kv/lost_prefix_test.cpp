// The prefix cache over a home tier that loses blocks.
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "kv/prefix_cache.h"
#include "support/tier/residency_fixture.h"

namespace karez::test {
namespace lost_prefix_test {

class LostPrefix : public ResidencyFixture {};

TEST_F(LostPrefix, IsNotPublishedAgain) {
  PrefixCache cache(*kv_, "model");
  std::vector<TokenId> tokens(64);
  std::iota(tokens.begin(), tokens.end(), 1);
  const int a = open(2);
  PrefixChain chain;
  const auto publish = [&](std::size_t num_tokens) {
    cache.publish(sequences_[0], "", std::span(tokens).first(num_tokens), chain);
  };
  publish(32);
  sequences_.push_back(kv_->fork(sequences_[0], 32).value());
  evict_all();
  tier_->reads_to_fail = 1;
  residency_->begin_step();
  EXPECT_FALSE(read(a + 1, {1}));  // which both have
  residency_->end_step();
  ASSERT_TRUE(kv_->extend(sequences_[0], kBlockSize));
  publish(48);
  const auto match = cache.match("", tokens);
  ASSERT_TRUE(match);
  EXPECT_EQ(match->num_tokens, 16);
  kv_->close(match->sequence);
  EXPECT_EQ(cache.check_invariants(), "");
  while (!sequences_.empty()) {
    close(0);
  }
}

}  // namespace lost_prefix_test
}  // namespace karez::test
