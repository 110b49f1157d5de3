// The scheduler above a home tier whose reads fail.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "kv/tier/host_tier.h"
#include "sched/scheduler.h"
#include "support/tier/held_tier.h"

namespace karez::test {
namespace scheduler_home_test {

using ::testing::ElementsAre;

constexpr int kSlotsPerBlock = 2;  // two layers, one head
constexpr int kBlocks = 40;

class SchedulerHome : public testing::Test {
 protected:
  SchedulerHome() {
    KVCacheSpec spec;
    spec.num_layers = kSlotsPerBlock;
    spec.num_kv_heads = 1;
    spec.head_dim = 16;
    const auto block_bytes = static_cast<std::int64_t>(spec.slot_bytes()) * kSlotsPerBlock;
    auto tier =
        std::make_unique<HeldTier>(HostTier::create({.block_bytes = spec.slot_bytes(),
                                                     .capacity_bytes = 4 * kBlocks * block_bytes,
                                                     .num_workers = 0})
                                       .value(),
                                   Clock::steady());
    tier_ = tier.get();
    kv_ = KVCacheManager::create(spec, kBlocks * block_bytes, std::move(tier)).value();
    scheduler_ = std::make_unique<Scheduler>(
        *kv_, nullptr, SchedulerOptions{SchedulingPolicy::kFcfs, /*max_num_batched_tokens=*/64});
  }

  static Request request(RequestId id, int num_tokens) {
    Request request;
    request.id = id;
    request.prompt.resize(static_cast<std::size_t>(num_tokens));
    std::iota(request.prompt.begin(), request.prompt.end(), 0);
    return request;
  }
  // Its KV is at home, all of it.
  void add_demoted(RequestId id, int num_tokens) {
    const SequenceId kv = kv_->open();
    ASSERT_TRUE(kv_->extend(kv, num_tokens - 10));
    kv_->demote(kv);
    scheduler_->add_computed(request(id, num_tokens), {}, kv, {});
  }
  // Of what is at home too, nothing stays in the fast tier but what a slot or two hold.
  void evict() {
    const SequenceId large = kv_->open();
    int blocks = 0;
    while (kv_->extend(large, kBlockSize)) {
      ++blocks;
    }
    ASSERT_GT(blocks, 0);
    kv_->close(large);
  }
  std::vector<std::string> step() {
    const StepPlan plan = scheduler_->schedule();
    std::vector<std::string> said;
    StepOutput output;
    sequences_.clear();
    for (const PlannedSequence& planned : plan.sequences) {
      said.push_back(
          fmt::format("{}:{}+{}", planned.request, planned.first_position, planned.tokens.size()));
      sequences_.push_back(planned.kv);
      if (planned.wants_logits) {
        output.samples.push_back({7, false});
      }
    }
    for (const EndedSequence& ended : plan.ended) {
      said.push_back(fmt::format("{}:ended", ended.request));
    }
    scheduler_->update(plan, output);
    EXPECT_EQ(kv_->check_invariants(), "");
    return said;
  }

  HeldTier* tier_ = nullptr;
  std::unique_ptr<KVCacheManager> kv_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<SequenceId> sequences_;  // of the last step
};

TEST_F(SchedulerHome, ABlockThatCannotBeReadBackCostsNobodyElseHisKv) {
  add_demoted(1, 30);
  add_demoted(2, 30);
  add_demoted(3, 30);
  evict();
  tier_->reads_to_fail = 1;
  EXPECT_THAT(step(), ElementsAre("1:0+30", "2:20+10", "3:20+10"));
  EXPECT_EQ(tier_->reads_to_fail, 0);
}

TEST_F(SchedulerHome, OneThatRunsAndWhoseBlockCannotBeReadBackIsComputedAgain) {
  scheduler_->add(request(1, 20), {});
  scheduler_->add(request(2, 20), {});
  EXPECT_THAT(step(), ElementsAre("1:0+20", "2:0+20"));
  kv_->demote(sequences_[0]);
  evict();
  tier_->reads_to_fail = 1;
  EXPECT_THAT(step(), ElementsAre("2:20+1"));
  EXPECT_EQ(tier_->reads_to_fail, 0);
  EXPECT_EQ(scheduler_->stats().preemptions, 0);
  EXPECT_THAT(step(), ElementsAre("2:21+1", "1:0+21"));
}

TEST_F(SchedulerHome, AnAnswerThatOutgrowsTheFastTierEnds) {
  // 79 slots for sequences: 77 of them hold what one layer reads, two what is written.
  const int num_tokens = 77 * kBlockSize;
  ASSERT_TRUE(scheduler_->can_ever_fit(num_tokens));
  ASSERT_FALSE(scheduler_->can_ever_fit(num_tokens + 1));
  scheduler_->add(request(1, num_tokens), {});
  std::string last;
  std::vector<std::string> said = step();
  while (!said.empty() && said.front() != "1:ended") {
    last = said.front();
    said = step();
  }
  EXPECT_EQ(last, fmt::format("1:{}+1", num_tokens + kBlockSize - 1));
  EXPECT_THAT(said, ElementsAre("1:ended"));
  EXPECT_EQ(scheduler_->stats().num_running, 0);
}

}  // namespace scheduler_home_test
}  // namespace karez::test
