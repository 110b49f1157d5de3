#include "spec/draft_model_proposer.h"

#include <gtest/gtest.h>

#include <map>

#include "support/paged_fake_runner.h"

namespace karez::test {
namespace {

constexpr int kVocabSize = 40;

// The greedy tokens of a fake model behind a sequence.
std::vector<TokenId> continuation(const std::vector<int>& windows, std::vector<TokenId> tokens,
                                  int count) {
  auto kv = std::move(KVCacheManager::create(PagedFakeRunner::kv_spec(windows), 1 << 20).value());
  DraftModelProposer fresh(std::make_unique<PagedFakeRunner>(kVocabSize), std::move(kv),
                           {.context_tokens = 1000, .max_batch_tokens = 1000});
  const DraftQuery query{{1, 0}, tokens, count};
  return fresh.propose(std::span(&query, 1)).front().tokens;
}

class DraftModelProposerTest : public testing::Test {
 protected:
  void start(int num_slots, DraftModelOptions options = {.context_tokens = 1000}) {
    const KVCacheSpec spec = PagedFakeRunner::kv_spec(windows_);
    auto kv = std::move(
        KVCacheManager::create(spec, static_cast<std::int64_t>(spec.slot_bytes()) * num_slots)
            .value());
    kv_ = kv.get();
    auto runner = std::make_unique<PagedFakeRunner>(kVocabSize);
    runner->before_forward = [this](int /*call*/) {
      ++num_forwards_;
      return !fails_;
    };
    proposer_ = std::make_unique<DraftModelProposer>(std::move(runner), std::move(kv), options);
  }
  std::vector<TokenId> ask(std::uint64_t request, const std::vector<TokenId>& tokens, int count) {
    const DraftQuery query{{request, 0}, tokens, count};
    return proposer_->propose(std::span(&query, 1)).front().tokens;
  }
  static std::vector<TokenId> prompt(int count, TokenId first) {
    std::vector<TokenId> tokens;
    for (int i = 0; i < count; ++i) {
      tokens.push_back((first + i * 7) % kVocabSize);
    }
    return tokens;
  }

  std::vector<int> windows_ = {40, 0};
  KVCacheManager* kv_ = nullptr;
  int num_forwards_ = 0;
  bool fails_ = false;
  std::unique_ptr<DraftModelProposer> proposer_;
};

// The target takes all, some or none of the drafts, and adds a token of its own.
TEST_F(DraftModelProposerTest, ProposesWhatTheModelSaysWhateverTheTargetTook) {
  for (const std::vector<int>& windows : {std::vector<int>{40, 0}, {5}, {0}, {16, 33}}) {
    windows_ = windows;
    start(100);
    std::vector<TokenId> tokens = prompt(20, 3);
    for (int round = 0; round < 30; ++round) {
      const auto drafts = ask(1, tokens, 6);
      ASSERT_EQ(drafts, continuation(windows, tokens, 6)) << "round " << round;
      const auto taken = static_cast<std::ptrdiff_t>(round % 7);
      tokens.insert(tokens.end(), drafts.begin(), drafts.begin() + taken);
      tokens.push_back((tokens.back() * 3 + round) % kVocabSize);
    }
    // 20 tokens, then what was new, and 5 more forwards for each call.
    EXPECT_EQ(num_forwards_, 30 * 6);
    num_forwards_ = 0;
    EXPECT_EQ(kv_->check_invariants(), "");
  }
}

TEST_F(DraftModelProposerTest, ComputesSequencesSideBySide) {
  start(200);
  const auto a = prompt(30, 1);
  const auto b = prompt(17, 2);
  const std::vector<DraftQuery> queries = {{{1, 0}, a, 3}, {{1, 1}, b, 5}};
  const auto proposals = proposer_->propose(queries);
  EXPECT_EQ(proposals[0].tokens, continuation(windows_, a, 3));
  EXPECT_EQ(proposals[1].tokens, continuation(windows_, b, 5));
  EXPECT_EQ(num_forwards_, 5);
  proposer_->forget({1, 0});
  proposer_->forget({1, 1});
  proposer_->forget({9, 9});
  EXPECT_EQ(kv_->stats().slots_used, 0);
}

TEST_F(DraftModelProposerTest, ReadsALongPromptInParts) {
  start(100, {.context_tokens = 1000, .max_batch_tokens = 16});
  const auto tokens = prompt(50, 5);
  EXPECT_TRUE(ask(1, tokens, 4).empty());
  EXPECT_TRUE(ask(1, tokens, 4).empty());
  EXPECT_TRUE(ask(1, tokens, 4).empty());
  EXPECT_EQ(ask(1, tokens, 4), continuation(windows_, tokens, 4));
}

TEST_F(DraftModelProposerTest, StopsAtTheEndOfItsContext) {
  start(100, {.context_tokens = 32});
  EXPECT_EQ(ask(1, prompt(30, 1), 8).size(), 2U);
  EXPECT_TRUE(ask(1, prompt(32, 1), 8).empty());
  EXPECT_TRUE(ask(1, prompt(40, 1), 8).empty());
}

TEST_F(DraftModelProposerTest, OldSequencesGiveWay) {
  start(2 * 4);  // of 64 tokens
  for (std::uint64_t request = 1; request < 20; ++request) {
    const auto tokens = prompt(40, static_cast<TokenId>(request));
    EXPECT_EQ(ask(request, tokens, 3), continuation(windows_, tokens, 3));
    EXPECT_EQ(kv_->check_invariants(), "");
  }
  // Those asked for together do not: one gets none.
  const auto a = prompt(40, 1);
  const auto b = prompt(40, 2);
  const std::vector<DraftQuery> queries = {{{30, 0}, a, 3}, {{31, 0}, b, 3}};
  const auto proposals = proposer_->propose(queries);
  EXPECT_EQ(proposals[0].tokens, continuation(windows_, a, 3));
  EXPECT_TRUE(proposals[1].tokens.empty());
  EXPECT_TRUE(ask(50, prompt(100, 3), 3).empty()) << "larger than the whole draft KV";
}

TEST_F(DraftModelProposerTest, AFailureCostsTheDraftsAndNothingElse) {
  start(100);
  auto tokens = prompt(30, 1);
  ask(1, tokens, 3);
  fails_ = true;
  tokens.push_back(5);
  EXPECT_TRUE(ask(1, tokens, 3).empty());
  EXPECT_EQ(kv_->stats().slots_used, 0);
  fails_ = false;
  EXPECT_EQ(ask(1, tokens, 3), continuation(windows_, tokens, 3));
}

}  // namespace
}  // namespace karez::test
