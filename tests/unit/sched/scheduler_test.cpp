#include "sched/scheduler.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

namespace karez {
namespace scheduler_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int kSlotsPerBlock = 2;  // two layers, one head

class SchedulerTest : public testing::Test {
 protected:
  void start(int num_blocks, SchedulerOptions options, bool prefix_cache = false) {
    KVCacheSpec spec;
    spec.num_layers = kSlotsPerBlock;
    spec.num_kv_heads = 1;
    spec.head_dim = 16;
    const auto cap = static_cast<std::int64_t>(spec.slot_bytes()) * kSlotsPerBlock * num_blocks;
    scheduler_.reset();
    cache_.reset();
    kv_ = std::move(KVCacheManager::create(spec, cap).value());
    if (prefix_cache) {
      cache_ = std::make_unique<PrefixCache>(*kv_, "model");
    }
    scheduler_ = std::make_unique<Scheduler>(*kv_, cache_.get(), options);
  }

  // A prompt that no other request shares.
  void add(RequestId id, int num_tokens, int priority = 0, int num_choices = 1) {
    Request request;
    request.id = id;
    request.prompt.assign(static_cast<std::size_t>(num_tokens), static_cast<TokenId>(1000 + id));
    request.priority = priority;
    request.num_choices = num_choices;
    scheduler_->add(request);
  }
  void add_prompt(RequestId id, std::vector<TokenId> prompt, const std::string& salt = "") {
    Request request;
    request.id = id;
    request.prompt = std::move(prompt);
    request.cache_salt = salt;
    scheduler_->add(request);
  }

  // Runs one step; every sampled token is 7. Says "request:first+tokens" for each sequence, with a
  // "!" if its next token was sampled and ".choice" if it is not the first choice.
  std::vector<std::string> step(std::vector<RequestId> finish = {},
                                std::int64_t slots_of_others = 0) {
    scheduler_->set_slots_of_others(slots_of_others);
    plan_ = scheduler_->schedule();
    std::vector<std::string> said;
    StepOutput output;
    for (const PlannedSequence& planned : plan_.sequences) {
      said.push_back(fmt::format("{}{}:{}+{}{}", planned.request,
                                 planned.choice > 0 ? fmt::format(".{}", planned.choice) : "",
                                 planned.first_position, planned.tokens.size(),
                                 planned.wants_logits ? "!" : ""));
      for (int i = 0; planned.wants_logits && i < planned.num_choices; ++i) {
        const bool ends = std::ranges::find(finish, planned.request) != finish.end();
        output.samples.push_back({7, ends});
      }
    }
    for (const EndedSequence& ended : plan_.ended) {
      said.push_back(fmt::format("{}:ended", ended.request));
    }
    scheduler_->update(plan_, output);
    EXPECT_EQ(kv_->check_invariants(), "");
    return said;
  }

  static std::vector<TokenId> count_from(TokenId first, int num_tokens) {
    std::vector<TokenId> tokens(static_cast<std::size_t>(num_tokens));
    std::iota(tokens.begin(), tokens.end(), first);
    return tokens;
  }
  static SchedulerOptions options(int batched_tokens, int seqs, int prefill_beside_decodes = 128) {
    return {SchedulingPolicy::kFcfs, batched_tokens, seqs, prefill_beside_decodes};
  }

  std::unique_ptr<KVCacheManager> kv_;
  std::unique_ptr<PrefixCache> cache_;
  std::unique_ptr<Scheduler> scheduler_;
  StepPlan plan_;
};

TEST_F(SchedulerTest, ComputesAPromptInChunksAndThenTokenByToken) {
  start(20, options(32, 4));
  add(1, 70);
  EXPECT_THAT(step(), ElementsAre("1:0+32"));
  EXPECT_THAT(step(), ElementsAre("1:32+32"));
  EXPECT_THAT(step(), ElementsAre("1:64+6!"));
  EXPECT_THAT(step(), ElementsAre("1:70+1!"));
  EXPECT_THAT(step({1}), ElementsAre("1:71+1!"));
  EXPECT_FALSE(scheduler_->has_work());
  EXPECT_EQ(kv_->stats().slots_used, 0);
}

TEST_F(SchedulerTest, DecodesAndPromptsShareAStep) {
  start(40, options(32, 4, 16));
  add(1, 10);
  EXPECT_THAT(step(), ElementsAre("1:0+10!"));
  add(2, 40);
  add(3, 5);
  // While 1 generates, prompts get 16 tokens of a step together, and 1 never waits.
  EXPECT_THAT(step(), ElementsAre("1:10+1!", "2:0+16"));
  EXPECT_THAT(step(), ElementsAre("1:11+1!", "2:16+16"));
  EXPECT_THAT(step(), ElementsAre("1:12+1!", "2:32+8!", "3:0+5!"));
  EXPECT_THAT(step(), ElementsAre("1:13+1!", "2:40+1!", "3:5+1!"));
}

TEST_F(SchedulerTest, RunsAtMostMaxNumSeqsAndStartsTheNextWhenOneEnds) {
  start(40, options(64, 2));
  add(1, 4);
  add(2, 4);
  add(3, 4);
  EXPECT_THAT(step(), ElementsAre("1:0+4!", "2:0+4!"));
  EXPECT_THAT(step({1}), ElementsAre("1:4+1!", "2:4+1!"));
  EXPECT_THAT(step(), ElementsAre("2:5+1!", "3:0+4!"));
  EXPECT_EQ(scheduler_->stats().num_running, 2);
  EXPECT_EQ(scheduler_->stats().num_waiting, 0);
}

TEST_F(SchedulerTest, TakesLowerPrioritiesFirstIfAsked) {
  SchedulerOptions by_priority = options(64, 1);
  by_priority.policy = SchedulingPolicy::kPriority;
  start(40, by_priority);
  add(1, 4, /*priority=*/5);
  add(2, 4, /*priority=*/-1);
  add(3, 4, /*priority=*/5);
  EXPECT_THAT(step({2}), ElementsAre("2:0+4!"));
  EXPECT_THAT(step({1}), ElementsAre("1:0+4!"));
  EXPECT_THAT(step({3}), ElementsAre("3:0+4!"));

  start(40, options(64, 1));
  add(1, 4, 5);
  add(2, 4, -1);
  EXPECT_THAT(step({1}), ElementsAre("1:0+4!"));
}

TEST_F(SchedulerTest, PreemptsTheYoungestAndComputesItAgain) {
  start(5, options(64, 4));
  add(1, 15);
  add(2, 15);
  EXPECT_THAT(step(), ElementsAre("1:0+15!", "2:0+15!"));
  for (int i = 0; i < 17; ++i) {
    // Both grow to two blocks each; the fifth block goes to the older one.
    ASSERT_THAT(step(), ElementsAre(fmt::format("1:{}+1!", 15 + i), fmt::format("2:{}+1!", 15 + i)))
        << i;
  }
  EXPECT_THAT(step(), ElementsAre("1:32+1!"));
  EXPECT_EQ(scheduler_->stats().num_running, 2) << "the younger one waits with its blocks";
  EXPECT_EQ(scheduler_->stats().preemptions, 0);
  for (int i = 0; i < 15; ++i) {
    ASSERT_THAT(step(), ElementsAre(fmt::format("1:{}+1!", 33 + i))) << i;
  }
  EXPECT_THAT(step(), ElementsAre("1:48+1!"));
  EXPECT_EQ(scheduler_->stats().preemptions, 1);
  EXPECT_EQ(scheduler_->stats().num_waiting, 1);
  EXPECT_THAT(step({1}), ElementsAre("1:49+1!"));
  EXPECT_THAT(step({2}), ElementsAre("2:0+33!")) << "the prompt and what it had generated";
  EXPECT_FALSE(scheduler_->has_work());
}

TEST_F(SchedulerTest, EndsASequenceThatFillsTheFastTierAlone) {
  start(2, options(64, 4));
  EXPECT_TRUE(scheduler_->can_ever_fit(32));
  EXPECT_FALSE(scheduler_->can_ever_fit(33));
  add(1, 31);
  EXPECT_THAT(step(), ElementsAre("1:0+31!"));
  EXPECT_THAT(step(), ElementsAre("1:31+1!"));
  EXPECT_THAT(step(), ElementsAre("1:ended"));
  EXPECT_FALSE(scheduler_->has_work());
  EXPECT_EQ(kv_->stats().slots_used, 0);
}

TEST_F(SchedulerTest, DoesNotStartWhatWouldBePreemptedSoon) {
  start(6, options(64, 4));
  add(1, 60);
  EXPECT_THAT(step(), ElementsAre("1:0+60!"));
  add(2, 40);  // three blocks, and two are free
  add(3, 1);   // would fit, but nobody overtakes
  EXPECT_THAT(step(), ElementsAre("1:60+1!"));
  EXPECT_EQ(scheduler_->stats().num_waiting, 2);
  EXPECT_THAT(step({1}), ElementsAre("1:61+1!"));
  EXPECT_THAT(step(), ElementsAre("2:0+40!", "3:0+1!"));
  EXPECT_EQ(scheduler_->stats().preemptions, 0);
}

TEST_F(SchedulerTest, ComputesThePromptOfSeveralChoicesOnce) {
  start(20, options(64, 4));
  add(1, 20, 0, /*num_choices=*/3);
  add(2, 3, 0, 2);  // two more choices are over max_num_seqs
  EXPECT_THAT(step(), ElementsAre("1:0+20!"));
  EXPECT_EQ(scheduler_->stats().num_running, 3);
  EXPECT_EQ(kv_->stats().slots_used, 2 * kSlotsPerBlock) << "the choices share the prompt";
  EXPECT_THAT(step(), ElementsAre("1:20+1!", "1.1:20+1!", "1.2:20+1!"));
  EXPECT_EQ(kv_->stats().slots_used, 4 * kSlotsPerBlock) << "the last, partial block is copied";
  scheduler_->cancel(1);
  EXPECT_EQ(kv_->stats().slots_used, 0);
  EXPECT_THAT(step(), ElementsAre("2:0+3!"));
}

TEST_F(SchedulerTest, EndsChoicesOneByOne) {
  start(20, options(64, 4));
  add(1, 20, 0, 3);
  StepPlan plan = scheduler_->schedule();
  scheduler_->update(plan, {{{7, true}, {8, false}, {9, true}}});
  EXPECT_EQ(scheduler_->stats().num_running, 1);
  EXPECT_THAT(step({1}), ElementsAre("1.1:20+1!"));
  EXPECT_EQ(kv_->stats().slots_used, 0);
}

TEST_F(SchedulerTest, CancelsInEveryPhase) {
  start(20, options(16, 2));
  add(1, 10);
  add(2, 100);
  add(3, 5);
  EXPECT_THAT(step(), ElementsAre("1:0+10!", "2:0+6"));
  scheduler_->cancel(3);   // waits
  scheduler_->cancel(1);   // generates
  scheduler_->cancel(99);  // unknown
  EXPECT_THAT(step(), ElementsAre("2:6+16"));
  scheduler_->cancel(2);  // in its prompt
  EXPECT_FALSE(scheduler_->has_work());
  EXPECT_EQ(kv_->stats().slots_used, 0);
}

TEST_F(SchedulerTest, EndsTheSequencesOfAFailedStepOnly) {
  start(20, options(16, 2));
  add(1, 10);
  add(2, 4);
  add(3, 5);
  scheduler_->update_failed(scheduler_->schedule());
  EXPECT_THAT(step({3}), ElementsAre("3:0+5!"));
  EXPECT_EQ(kv_->stats().slots_used, 0);
}

TEST_F(SchedulerTest, FindsAPromptThatWasComputedBefore) {
  start(20, options(256, 4), /*prefix_cache=*/true);
  add_prompt(1, count_from(0, 64));
  EXPECT_THAT(step({1}), ElementsAre("1:0+64!"));
  EXPECT_EQ(kv_->stats().slots_used, 0);
  add_prompt(2, count_from(0, 64));
  EXPECT_THAT(step({2}), ElementsAre("2:48+16!")) << "the last block has the row with the logits";
  EXPECT_EQ(plan_.sequences.front().cached_tokens, 48);
  add_prompt(3, count_from(0, 65));
  EXPECT_THAT(step({3}), ElementsAre("3:64+1!"));
  add_prompt(4, count_from(0, 64), "salt");
  EXPECT_THAT(step({4}), ElementsAre("4:0+64!"));
  EXPECT_EQ(scheduler_->stats().prefix_queries_tokens, 64 + 64 + 65 + 64);
  EXPECT_EQ(scheduler_->stats().prefix_hits_tokens, 48 + 64);
}

// What was generated behind max_dense_tokens has sparse KV, the same tokens in a prompt have not.
TEST_F(SchedulerTest, APreemptedAnswerFindsNoMoreThanItWouldPublish) {
  for (const int max_dense_tokens : {16, 32}) {
    SchedulerOptions sparse = options(256, 4);
    sparse.max_dense_tokens = max_dense_tokens;
    start(20, sparse, true);
    std::vector<TokenId> longer = count_from(0, 20);
    longer.resize(60, 7);  // as the answer to the first 20
    add_prompt(1, longer);
    EXPECT_THAT(step({1}), ElementsAre("1:0+60!"));
    add_prompt(2, count_from(0, 20));
    EXPECT_THAT(step(), ElementsAre("2:16+4!"));
    for (int i = 0; i < 30; ++i) {
      step();
    }
    plan_ = scheduler_->schedule();
    ASSERT_EQ(plan_.sequences.size(), 1U);
    ASSERT_TRUE(scheduler_->lose(plan_.sequences[0]));
    scheduler_->update(plan_, {});
    EXPECT_THAT(step({2}),
                ElementsAre(fmt::format("2:{}+{}!", max_dense_tokens, 51 - max_dense_tokens)));
  }
}

// A hit may only be what has been computed: cases A1 (c).
TEST_F(SchedulerTest, EqualPromptsInOneStepAreComputedOnce) {
  start(40, options(48, 4), true);
  add_prompt(1, count_from(0, 70));
  add_prompt(2, count_from(0, 70));
  std::vector<TokenId> other = count_from(0, 40);
  other.push_back(5000);
  add_prompt(3, other);
  add_prompt(4, count_from(900, 3));
  EXPECT_THAT(step(), ElementsAre("1:0+48"));
  EXPECT_THAT(step(), ElementsAre("1:48+22!", "3:32+9!", "4:0+3!"))
      << "3 shares two blocks, which are there; 2 shares four";
  EXPECT_THAT(step(), ElementsAre("1:70+1!", "3:41+1!", "4:3+1!", "2:64+6!"));
}

// Cases A1 (a) and (b): what was found is given up with a try that fails.
TEST_F(SchedulerTest, LooksAgainWhenItTriesAgain) {
  start(8, options(256, 4), true);
  add_prompt(1, count_from(0, 64));
  EXPECT_THAT(step({1}), ElementsAre("1:0+64!"));
  add_prompt(2, count_from(5000, 90));  // six blocks: takes two of the four idle ones
  EXPECT_THAT(step(), ElementsAre("2:0+90!"));
  std::vector<TokenId> longer = count_from(0, 64);
  longer.push_back(1);
  add_prompt(3, longer);
  EXPECT_THAT(step(), ElementsAre("2:90+1!"));
  EXPECT_EQ(scheduler_->stats().num_waiting, 1);
  for (int i = 0; i < 20; ++i) {
    step();  // 2 grows by a block more
  }
  step({2});
  EXPECT_THAT(step({3}), ElementsAre("3:16+49!"));
  EXPECT_EQ(plan_.sequences.front().cached_tokens, 16);
}

TEST_F(SchedulerTest, APromptThatIsPartlyComputedGoesOnBehindThat) {
  start(20, {}, true);
  const SequenceId kv = kv_->open();
  ASSERT_TRUE(kv_->extend(kv, 40));
  Request request;
  request.id = 1;
  request.prompt = count_from(0, 50);
  scheduler_->add_computed(request, {}, kv, {});
  EXPECT_THAT(step(), ElementsAre("1:40+10!"));
  EXPECT_EQ(plan_.sequences[0].cached_tokens, 40);
  EXPECT_THAT(step({1}), ElementsAre("1:50+1!"));

  add_prompt(2, count_from(0, 50));
  EXPECT_THAT(step({2}), ElementsAre("2:48+2!")) << "others find its blocks";
  EXPECT_EQ(kv_->stats().slots_used, 0);
}

TEST_F(SchedulerTest, BlocksThatAreAtHomeElsewhereOrNotExactAreFoundByNobody) {
  for (const Scheduler::Origin& origin :
       {Scheduler::Origin{.num_remote_tokens = 16}, Scheduler::Origin{.is_exact = false}}) {
    start(20, {}, true);
    const SequenceId kv = kv_->open();
    ASSERT_TRUE(kv_->extend(kv, 32));
    Request request;
    request.id = 1;
    request.prompt = count_from(0, 50);
    scheduler_->add_computed(request, {}, kv, origin);
    EXPECT_THAT(step({1}), ElementsAre("1:32+18!"));
    add_prompt(2, count_from(0, 50));
    EXPECT_THAT(step({2}), ElementsAre("2:0+50!"));
  }
}

TEST_F(SchedulerTest, OneThatLacksSlotsWhichOthersHaveGoesOnWhenTheyAreBack) {
  start(5, options(64, 4));
  add(1, 15);
  EXPECT_THAT(step(), ElementsAre("1:0+15!"));
  const SequenceId other = kv_->open();
  ASSERT_TRUE(kv_->extend(other, 3 * kBlockSize));
  const std::int64_t slots_of_others = 3 * kSlotsPerBlock;
  for (int i = 0; i < 17; ++i) {
    ASSERT_THAT(step({}, slots_of_others), ElementsAre(fmt::format("1:{}+1!", 15 + i)));
  }
  EXPECT_THAT(step({}, slots_of_others), IsEmpty());
  EXPECT_THAT(step({}, slots_of_others), IsEmpty());
  EXPECT_EQ(scheduler_->stats().num_running, 1);
  kv_->close(other);
  ASSERT_THAT(step(), ElementsAre("1:32+1!"));
  EXPECT_EQ(plan_.sequences[0].tokens.back(), 7);
  EXPECT_THAT(step({1}), ElementsAre("1:33+1!"));
  EXPECT_EQ(kv_->stats().slots_used, 0);
}

TEST_F(SchedulerTest, OneThatWaitsForSlotsWhichOthersHaveStartsWhenTheyAreBack) {
  start(5, options(64, 4));
  const SequenceId other = kv_->open();
  ASSERT_TRUE(kv_->extend(other, 5 * kBlockSize));
  add(1, 20);
  EXPECT_THAT(step({}, 5 * kSlotsPerBlock), IsEmpty());
  EXPECT_EQ(scheduler_->stats().num_waiting, 1);
  kv_->close(other);
  EXPECT_THAT(step({1}), ElementsAre("1:0+20!"));
  EXPECT_EQ(kv_->stats().slots_used, 0);
}

TEST_F(SchedulerTest, KvThatIsThereIsKeptWhileOthersHaveTheSlots) {
  start(5, options(64, 4));
  const SequenceId other = kv_->open();
  ASSERT_TRUE(kv_->extend(other, 4 * kBlockSize));
  const SequenceId computed = kv_->open();
  ASSERT_TRUE(kv_->extend(computed, kBlockSize));
  Request request;
  request.id = 1;
  request.prompt = count_from(0, 20);
  scheduler_->add_computed(request, {}, computed, {});
  EXPECT_THAT(step({}, 4 * kSlotsPerBlock), IsEmpty());
  kv_->close(other);
  EXPECT_THAT(step({1}), ElementsAre("1:16+4!"));
}

TEST_F(SchedulerTest, WhatWasComputedElsewhereIsFreeAfterACancelInTheQueue) {
  start(5, {});
  add(1, 20);
  EXPECT_THAT(step(), ElementsAre("1:0+20!"));
  const SequenceId kv = kv_->open();
  ASSERT_TRUE(kv_->extend(kv, 16));
  Request request;
  request.id = 2;
  request.prompt = count_from(0, 30);
  scheduler_->add_computed(request, {}, kv, {.num_remote_tokens = 16});
  scheduler_->cancel(2);
  EXPECT_EQ(kv_->stats().slots_used, 2 * kSlotsPerBlock) << "cancelled while it waits";
}

}  // namespace scheduler_test
}  // namespace karez
