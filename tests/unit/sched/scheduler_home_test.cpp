// The scheduler above a home tier: reads that fail, and answers that outgrow the fast tier.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
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
using ::testing::IsEmpty;

constexpr int kSlotsPerBlock = 2;  // two layers, one head
constexpr int kBlocks = 40;

// What a compressor has packed for later.
struct Packing final : SequenceListener {
  void fork(SequenceId, SequenceId) override {}
  void forget(SequenceId) override {}
  bool give_back_slots(SequenceId) override {
    const bool has_any = !blocks.blocks().empty();
    blocks.release();
    return has_any;
  }
  NewBlocks blocks;
};

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
    start({});
  }
  void start(SchedulerOptions options) {
    options.max_num_batched_tokens = 64;
    scheduler_ = std::make_unique<Scheduler>(*kv_, nullptr, options, &listener_);
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
          fmt::format("{}:{}+{}{}", planned.request, planned.first_position, planned.tokens.size(),
                      planned.drafts.empty() ? "" : fmt::format("^{}", planned.drafts.size())));
      sequences_.push_back(planned.kv);
      output.accepted_drafts.push_back(0);
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

  // Until its answer ends. Returns its last step.
  std::string run_until_ended(RequestId id) {
    std::string last;
    for (int i = 0; i < 3000; ++i) {
      const std::vector<std::string> said = step();
      if (said.size() != 1) {
        break;
      }
      if (said.front() == fmt::format("{}:ended", id)) {
        EXPECT_EQ(scheduler_->stats().num_running, 0);
        return last;
      }
      last = said.front();
    }
    ADD_FAILURE() << "it never ends";
    return last;
  }

  HeldTier* tier_ = nullptr;
  std::unique_ptr<KVCacheManager> kv_;
  Packing listener_;
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

// 79 slots for sequences: 77 of them hold what one layer reads, two what is written.
constexpr int kFittingTokens = 77 * kBlockSize;
// The last one whose row fits: the block that it is in is written.
std::string last_row() { return fmt::format("1:{}+1", kFittingTokens + kBlockSize - 1); }

TEST_F(SchedulerHome, AnAnswerThatOutgrowsTheFastTierEnds) {
  ASSERT_TRUE(scheduler_->can_ever_fit(kFittingTokens));
  ASSERT_FALSE(scheduler_->can_ever_fit(kFittingTokens + 1));
  scheduler_->add(request(1, kFittingTokens), {});
  EXPECT_EQ(run_until_ended(1), last_row());
}

// Windows of four blocks become one of what is kept, and one of three pages.
TEST_F(SchedulerHome, AnAnswerWithArchivedWindowsEndsWhenItsBlocksOutgrowTheFastTier) {
  const CompressionSchedule schedule = {
      .window_tokens = 64, .kept_tokens = 16, .pages_per_block = 3};
  scheduler_->add(request(1, kFittingTokens), schedule);
  std::string last;
  std::vector<std::string> said = step();
  for (int i = 0; i < 3000 && !said.empty() && said.front() != "1:ended"; ++i) {
    last = said.front();
    const std::vector<CompressionCandidate> due = scheduler_->compression_candidates();
    if (!due.empty() && due.front().is_due()) {
      auto kept = kv_->new_blocks(0, 1);
      auto archived = kv_->new_blocks(0, 1);
      ASSERT_TRUE(kept.has_value() && archived.has_value());
      const std::vector<std::uint8_t> pages = {0, 1, 2};
      kv_->compress(due.front().kv, 0, {schedule.begin_of(due.front().window), 64},
                    std::move(*kept), std::move(*archived), pages);
      scheduler_->compressed(due.front().key);
    }
    said = step();
  }
  EXPECT_THAT(said, ElementsAre("1:ended"));
  // 38 windows of two blocks, one block that is not compressed yet, and the one that is written.
  EXPECT_EQ(last, fmt::format("1:{}+1", (38 * 4 + 2) * kBlockSize - 1));
}

TEST_F(SchedulerHome, WhatIsPackedForLaterEndsNoAnswer) {
  scheduler_->add(request(1, kFittingTokens), {});
  while (scheduler_->draft_candidates().empty()) {  // until it is computed
    step();
  }
  listener_.blocks = *kv_->new_blocks(0, 1);
  EXPECT_EQ(run_until_ended(1), last_row());
  EXPECT_TRUE(listener_.blocks.blocks().empty());
}

// However large the floor, which only says who runs side by side.
TEST_F(SchedulerHome, AnAnswerWhoseRowsSelectGoesOnWhileWhatTheyReadFits) {
  start({.decode_floor_tokens = 2 * kFittingTokens, .decode_read_tokens = 40 * kBlockSize});
  scheduler_->add(request(1, kFittingTokens), {});
  while (step() != std::vector<std::string>{fmt::format("1:{}+1", kFittingTokens + 100)}) {
    ASSERT_EQ(scheduler_->stats().num_running, 1);
  }
  // With a draft twice as much is read.
  const auto draft = [&] {
    scheduler_->set_drafts(scheduler_->draft_candidates().front().key, {{5}, 0});
  };
  draft();
  EXPECT_THAT(step(), ElementsAre(fmt::format("1:{}+1", kFittingTokens + 101)));
  start({.decode_read_tokens = 20 * kBlockSize});
  scheduler_->add(request(1, kFittingTokens), {});
  while (step() != std::vector<std::string>{fmt::format("1:{}+1", kFittingTokens + 100)}) {
    ASSERT_EQ(scheduler_->stats().num_running, 1);
  }
  draft();
  EXPECT_THAT(step(), ElementsAre(fmt::format("1:{}+1^1", kFittingTokens + 101)));
}

TEST_F(SchedulerHome, AnAnswerWhoseRowsSelectMoreThanTheFastTierHoldsEnds) {
  start({.decode_read_tokens = 78 * kBlockSize});
  scheduler_->add(request(1, kFittingTokens), {});
  EXPECT_EQ(run_until_ended(1), last_row());
}

// Dense first layers: the floor is that of the others.
TEST_F(SchedulerHome, AnAnswerThatOneLayerReadsAsAWholeEndsHoweverSmallItsFloor) {
  start({.decode_floor_tokens = 20 * kBlockSize});
  scheduler_->add(request(1, kFittingTokens), {});
  EXPECT_EQ(run_until_ended(1), last_row());
}

// The last token of a prompt is read with all before it, though it is computed alone.
TEST_F(SchedulerHome, APromptIsReadAsAWholeToItsLastToken) {
  start({.decode_read_tokens = kBlockSize});
  scheduler_->add(request(1, 65), {});
  EXPECT_THAT(step(), ElementsAre("1:0+64"));
  // Four blocks of a layer, and the one that is written in two.
  scheduler_->set_slots_of_others(79 - 5);
  EXPECT_THAT(step(), IsEmpty());
  scheduler_->set_slots_of_others(79 - 6);
  EXPECT_THAT(step(), ElementsAre("1:64+1"));
}

}  // namespace scheduler_home_test
}  // namespace karez::test
