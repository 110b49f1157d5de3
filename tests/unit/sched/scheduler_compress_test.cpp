// The scheduler and windows that are compressed as they age: who is held, who gets room, what the
// prefix cache sees. The test stands in for the compressor; blocks have no content here.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "kv/tier/host_tier.h"
#include "sched/scheduler.h"

namespace karez {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int kSlotsPerBlock = 2;  // two layers, one head

// Windows of 32 tokens behind the first `first_position`, compressed to 16 when 16 lie behind.
CompressionSchedule windows_from(int first_position) {
  return {.first_position = first_position,
          .window_tokens = 32,
          .kept_tokens = 16,
          .recent_tokens = 16};
}

class Listener final : public SequenceListener {
 public:
  void fork(SequenceId of, SequenceId fork) override {
    told.push_back(fmt::format("fork {} {}", of.value, fork.value));
  }
  void forget(SequenceId sequence) override {
    told.push_back(fmt::format("forget {}", sequence.value));
    held.erase(std::remove_if(held.begin(), held.end(),
                              [&](const auto& entry) { return entry.first == sequence; }),
               held.end());
  }
  bool give_back_slots(SequenceId sequence) override {
    told.push_back(fmt::format("give back {}", sequence.value));
    const auto found = std::ranges::find(held, sequence, &std::pair<SequenceId, NewBlocks>::first);
    if (found == held.end()) {
      return false;
    }
    held.erase(found);
    return true;
  }

  std::vector<std::string> told;
  std::vector<std::pair<SequenceId, NewBlocks>> held;
};

class SchedulerCompress : public testing::Test {
 protected:
  void start(int num_blocks, SchedulerOptions options, bool prefix_cache = false,
             bool with_home = false) {
    KVCacheSpec spec;
    spec.num_layers = kSlotsPerBlock;
    spec.num_kv_heads = 1;
    spec.head_dim = 16;
    const auto slot_bytes = static_cast<std::int64_t>(spec.slot_bytes());
    scheduler_.reset();
    cache_.reset();
    std::unique_ptr<Tier> home;
    if (with_home) {
      home = HostTier::create({.block_bytes = spec.slot_bytes(),
                               .capacity_bytes = 400 * slot_bytes,
                               .num_workers = 0})
                 .value();
    }
    kv_ = KVCacheManager::create(spec, slot_bytes * (kSlotsPerBlock * num_blocks + 1),
                                 std::move(home))
              .value();
    if (prefix_cache) {
      cache_ = std::make_unique<PrefixCache>(*kv_, "model");
    }
    scheduler_ = std::make_unique<Scheduler>(*kv_, cache_.get(), options, &listener_);
  }
  ~SchedulerCompress() override {
    listener_.held.clear();
    scheduler_.reset();
    if (kv_ != nullptr) {
      EXPECT_EQ(kv_->stats().slots_used, 0);
      EXPECT_EQ(kv_->check_invariants(), "");
    }
  }

  void add(RequestId id, int num_tokens, const CompressionSchedule& schedule, int num_choices = 1) {
    Request request;
    request.id = id;
    request.prompt.assign(static_cast<std::size_t>(num_tokens), static_cast<TokenId>(1000 + id));
    request.num_choices = num_choices;
    scheduler_->add(request, schedule);
  }

  // As in scheduler_test.cpp; drafts that are computed are "^" and their number, and are wrong.
  std::vector<std::string> step(std::vector<RequestId> finish = {}) {
    const StepPlan plan = scheduler_->schedule();
    std::vector<std::string> said;
    StepOutput output;
    for (const PlannedSequence& planned : plan.sequences) {
      const int end = planned.first_position + planned.num_rows();
      for (const CompressionCandidate& candidate : candidates_) {
        if (candidate.kv == planned.kv) {
          EXPECT_LE(end, candidate.publication.position) << "crosses it";
        }
      }
      said.push_back(
          fmt::format("{}{}:{}+{}{}{}", planned.request,
                      planned.choice > 0 ? fmt::format(".{}", planned.choice) : "",
                      planned.first_position, planned.tokens.size(),
                      planned.drafts.empty() ? "" : fmt::format("^{}", planned.drafts.size()),
                      planned.wants_logits ? "!" : ""));
      for (int i = 0; planned.wants_logits && i < planned.num_choices; ++i) {
        const bool ends = std::ranges::find(finish, planned.request) != finish.end();
        output.samples.push_back({7, ends});
      }
      output.accepted_drafts.push_back(0);
    }
    for (const EndedSequence& ended : plan.ended) {
      said.push_back(fmt::format("{}:ended", ended.request));
    }
    scheduler_->update(plan, output);
    EXPECT_EQ(kv_->check_invariants(), "");
    candidates_ = scheduler_->compression_candidates();
    return said;
  }
  // Steps until nobody is planned, or a limit.
  std::vector<std::string> run_until_held() {
    std::vector<std::string> last;
    for (int i = 0; i < 200; ++i) {
      std::vector<std::string> now = step();
      if (now.empty()) {
        return last;
      }
      last = std::move(now);
    }
    ADD_FAILURE() << "nobody is ever held";
    return {};
  }
  CompressionCandidate candidate(RequestId request, int choice = 0) const {
    for (const CompressionCandidate& one : scheduler_->compression_candidates()) {
      if (one.request == request && one.choice == choice) {
        return one;
      }
    }
    ADD_FAILURE() << "request " << request << " is no candidate";
    return {};
  }
  // Of the next window, or false if it does not run.
  bool candidate_is_due(RequestId request) const {
    const auto all = scheduler_->compression_candidates();
    return std::ranges::any_of(all, [&](const CompressionCandidate& one) {
      return one.request == request && one.is_due();
    });
  }
  // -1: it does not run.
  int candidate_tokens(RequestId request) const {
    for (const CompressionCandidate& one : scheduler_->compression_candidates()) {
      if (one.request == request) {
        return one.num_tokens;
      }
    }
    return -1;
  }
  void compress(const CompressionCandidate& due) {
    ASSERT_TRUE(due.is_due());
    auto blocks = kv_->new_blocks(0, due.schedule.kept_blocks());
    ASSERT_TRUE(blocks.has_value());
    kv_->compress(due.kv, 0, {due.schedule.begin_of(due.window), due.schedule.window_tokens},
                  std::move(*blocks), {}, {});
    scheduler_->compressed(due.key);
    EXPECT_EQ(kv_->check_invariants(), "");
    candidates_ = scheduler_->compression_candidates();
  }
  static SchedulerOptions options(int batched_tokens, int seqs, int prefill_beside_decodes = 128) {
    return {SchedulingPolicy::kFcfs, batched_tokens, seqs, prefill_beside_decodes};
  }
  std::vector<BlockId> table(SequenceId sequence) const {
    const BlockTableView view = kv_->table(sequence, 0);
    return {view.begin(), view.end()};
  }

  Listener listener_;
  std::unique_ptr<KVCacheManager> kv_;
  std::unique_ptr<PrefixCache> cache_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<CompressionCandidate> candidates_;  // of the next step
};

TEST_F(SchedulerCompress, NoRowIsComputedBehindAPublicationBeforeItsWindowIsCompressed) {
  start(20, options(64, 4));
  add(1, 16, windows_from(16));
  EXPECT_THAT(run_until_held(), ElementsAre("1:63+1!"));
  EXPECT_TRUE(scheduler_->has_work());
  EXPECT_THAT(step(), IsEmpty()) << "it waits as long as it takes";
  CompressionCandidate due = candidate(1);
  EXPECT_EQ(due.window, 0);
  EXPECT_EQ(due.num_tokens, 64);
  compress(due);
  EXPECT_FALSE(candidate(1).is_due());
  EXPECT_THAT(step(), ElementsAre("1:64+1!"));
  EXPECT_THAT(run_until_held(), ElementsAre("1:95+1!"));
  due = candidate(1);
  EXPECT_EQ(due.window, 1);
  compress(due);
  EXPECT_THAT(step({1}), ElementsAre("1:96+1!"));
  EXPECT_FALSE(scheduler_->has_work());
}

TEST_F(SchedulerCompress, OthersGoOnWhileOneIsHeld) {
  start(40, options(64, 4));
  add(1, 16, windows_from(16));
  add(2, 20, {});
  add(3, 40, windows_from(48));
  while (!step().empty() && !candidate(1).is_due()) {
  }
  EXPECT_THAT(step(), ElementsAre("2:68+1!", "3:87+1!"));
  EXPECT_THAT(scheduler_->compression_candidates(), SizeIs(2)) << "2 is never compressed";
  EXPECT_FALSE(candidate(3).is_due());
  compress(candidate(1));
  EXPECT_THAT(step(), ElementsAre("1:64+1!", "2:69+1!", "3:88+1!"));
}

TEST_F(SchedulerCompress, PromptsAreCutAtPublicationsToo) {
  start(20, options(64, 4));
  add(1, 120, windows_from(0));
  EXPECT_THAT(step(), ElementsAre("1:0+48"));
  EXPECT_THAT(step(), IsEmpty());
  compress(candidate(1));
  EXPECT_THAT(step(), ElementsAre("1:48+32"));
  compress(candidate(1));
  EXPECT_THAT(step(), ElementsAre("1:80+32"));
  compress(candidate(1));
  EXPECT_THAT(step(), ElementsAre("1:112+8!"));
  EXPECT_EQ(kv_->num_gone(candidate(1).kv), 48);
}

TEST_F(SchedulerCompress, AStepThatIsSmallerThanAWindowGetsThere) {
  start(20, options(7, 4));
  add(1, 60, windows_from(0));
  for (int position = 0; position < 42; position += 7) {
    EXPECT_THAT(step(), ElementsAre(fmt::format("1:{}+7", position)));
  }
  EXPECT_THAT(step(), ElementsAre("1:42+6"));
  compress(candidate(1));
  EXPECT_THAT(step(), ElementsAre("1:48+7"));
}

TEST_F(SchedulerCompress, DraftsEndBeforeAPublication) {
  start(20, options(64, 4));
  add(1, 16, windows_from(16));
  while (candidate_tokens(1) < 60) {
    step();
  }
  const auto draft = [&](int count, int num_hints) {
    const auto drafting = scheduler_->draft_candidates();
    ASSERT_THAT(drafting, SizeIs(1));
    scheduler_->set_drafts(drafting[0].key,
                           {std::vector<TokenId>(static_cast<std::size_t>(count), 9), num_hints});
  };
  draft(8, 2);
  EXPECT_THAT(step(), ElementsAre("1:60+1^3!"));
  draft(2, 1);
  EXPECT_THAT(step(), ElementsAre("1:61+1^2!"));
  draft(8, 8);
  EXPECT_THAT(step(), ElementsAre("1:62+1^1!"));
  EXPECT_THAT(scheduler_->draft_candidates(), IsEmpty()) << "there is room for its own row";
  EXPECT_THAT(step(), ElementsAre("1:63+1!"));
  EXPECT_THAT(scheduler_->draft_candidates(), IsEmpty()) << "it is held";
  EXPECT_THAT(step(), IsEmpty());
  compress(candidate(1));
  draft(8, 0);
  EXPECT_THAT(step(), ElementsAre("1:64+1^8!"));
}

TEST_F(SchedulerCompress, ThePrefixCacheOffersWhatWasThereBeforeAlone) {
  start(30, options(64, 4), true);
  add(1, 20, windows_from(32));
  run_until_held();
  CompressionCandidate due = candidate(1);
  const std::vector<BlockId> before = table(due.kv);
  ASSERT_EQ(due.num_tokens, 80);
  compress(due);
  run_until_held();
  compress(candidate(1));
  run_until_held();
  compress(candidate(1));
  step({1});
  std::vector<TokenId> tokens(200, 7);
  std::fill_n(tokens.begin(), 20, 1001);
  EXPECT_EQ(cache_->num_entries(), 5);
  const auto found = cache_->match("", tokens);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->num_tokens, 80);
  EXPECT_EQ(table(found->sequence), before) << "full blocks of its first 80 tokens";
  kv_->close(found->sequence);
  EXPECT_EQ(cache_->check_invariants(), "");
}

TEST_F(SchedulerCompress, NothingCompressedIsPublishedWhenTheChainWasEvicted) {
  start(12, options(64, 4), true);
  add(1, 20, windows_from(32));
  for (int window = 0; window < 3; ++window) {
    run_until_held();
    compress(candidate(1));
  }
  // Somebody takes what is idle: blocks 2 to 7 of the first request's tokens.
  const SequenceId other = kv_->open();
  while (kv_->extend(other, 16)) {
  }
  EXPECT_EQ(cache_->num_entries(), 2);
  kv_->close(other);
  for (int i = 0; i < 40; ++i) {
    step();
    if (candidate(1).is_due()) {
      compress(candidate(1));
    }
  }
  EXPECT_EQ(cache_->num_entries(), 2);
  step({1});
  EXPECT_EQ(cache_->num_entries(), 2);
  std::vector<TokenId> tokens(200, 7);
  std::fill_n(tokens.begin(), 20, 1001);
  const auto found = cache_->match("", tokens);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->num_tokens, 32);
  kv_->close(found->sequence);
  EXPECT_EQ(cache_->check_invariants(), "");
}

TEST_F(SchedulerCompress, ASequenceFindsOnlyWhatLiesBeforeItsFirstWindow) {
  start(40, options(256, 4), true);
  add(1, 160, {});
  step();
  step({1});
  Request same;
  same.id = 2;
  same.prompt.assign(160, 1001);
  scheduler_->add(same, windows_from(48));
  EXPECT_THAT(step(), ElementsAre("2:48+48")) << "as far as its first publication";
  compress(candidate(2));
  EXPECT_THAT(step(), ElementsAre("2:96+32"));
}

TEST_F(SchedulerCompress, NobodyWaitsForAPrefixThatIsNotToBeHad) {
  start(60, options(64, 4), true);
  add(1, 160, windows_from(16));
  Request same;
  same.id = 2;
  same.prompt.assign(160, 1001);
  scheduler_->add(same, windows_from(16));
  same.id = 3;
  scheduler_->add(same, {});
  EXPECT_THAT(step(), ElementsAre("1:0+64")) << "the others wait for its first blocks";
  EXPECT_THAT(step(), ElementsAre("2:16+48")) << "it may have no more";
  EXPECT_THAT(step(), ElementsAre("3:64+64")) << "they offer no more";
  compress(candidate(1));
  compress(candidate(2));
  EXPECT_THAT(step(), ElementsAre("1:64+32", "2:64+32"));
}

TEST_F(SchedulerCompress, APreemptedSequenceIsComputedAgainWithTheSameWindows) {
  start(13, options(64, 4));
  add(1, 16, {});
  add(2, 16, windows_from(16));
  while (!candidate_is_due(2)) {
    step();
  }
  compress(candidate(2));
  while (scheduler_->stats().preemptions == 0) {
    step();
    if (candidate_is_due(2)) {
      compress(candidate(2));
    }
    ASSERT_LT(candidate_tokens(2), 190);
  }
  EXPECT_THAT(scheduler_->compression_candidates(), IsEmpty());
  const std::vector<std::string> again = step({1});
  EXPECT_THAT(again, SizeIs(1)) << "1 alone";
  EXPECT_THAT(step(), ElementsAre("2:0+64")) << "it stops where its first window is compressed";
  EXPECT_THAT(step(), IsEmpty());
  const CompressionCandidate due = candidate(2);
  EXPECT_EQ(due.window, 0);
  EXPECT_EQ(due.num_tokens, 64);
  compress(due);
  EXPECT_THAT(step(), ElementsAre("2:64+32"));
}

TEST_F(SchedulerCompress, AWindowThatWasDueEarlyIsDueThereWhenItIsComputedAgain) {
  start(20, options(64, 4));
  add(1, 16, windows_from(16));
  while (candidate_tokens(1) < 55) {
    step();
  }
  EXPECT_FALSE(candidate(1).is_due());
  EXPECT_EQ(scheduler_->stats().early_windows, 0);
  scheduler_->publish_early(candidate(1).key);
  EXPECT_EQ(scheduler_->stats().early_windows, 1);
  candidates_ = scheduler_->compression_candidates();
  EXPECT_THAT(step(), IsEmpty()) << "it is due";
  compress(candidate(1));
  EXPECT_THAT(step(), ElementsAre("1:55+1!"));
  ASSERT_TRUE(scheduler_->recompute(candidate(1).key));
  EXPECT_THAT(step(), ElementsAre("1:0+55"));
  EXPECT_THAT(step(), IsEmpty());
  compress(candidate(1));
  EXPECT_THAT(step(), ElementsAre("1:55+2!"));
  EXPECT_EQ(scheduler_->stats().early_windows, 1) << "the same one";
  EXPECT_THAT(run_until_held(), ElementsAre("1:95+1!")) << "the next is as scheduled";
}

TEST_F(SchedulerCompress, RoomToCompressCostsThoseBehind) {
  start(10, options(128, 4));
  add(1, 16, windows_from(16));
  add(2, 60, {});
  step();
  add(3, 16, {});
  while (!candidate_is_due(1)) {
    step();
    if (kv_->slots_available() == 0) {
      scheduler_->cancel(3);
    }
  }
  const CompressionCandidate due = candidate(1);
  NewBlocks others = *kv_->new_blocks(0, kv_->slots_available() / kSlotsPerBlock);
  ASSERT_FALSE(kv_->new_blocks(0, 1).has_value());
  const std::int64_t preemptions = scheduler_->stats().preemptions;
  EXPECT_TRUE(scheduler_->make_room_to_compress(due.key, kSlotsPerBlock));
  EXPECT_EQ(scheduler_->stats().preemptions, preemptions + 1);
  compress(due);
  EXPECT_THAT(scheduler_->compression_candidates(), SizeIs(1));
}

TEST_F(SchedulerCompress, TheLastOneWaitsForRoomUntilOthersEnd) {
  start(10, options(128, 4));
  add(1, 20, {});
  add(2, 16, windows_from(16));
  while (!candidate_is_due(2)) {
    step();
  }
  NewBlocks others = *kv_->new_blocks(0, kv_->slots_available() / kSlotsPerBlock);
  EXPECT_FALSE(scheduler_->make_room_to_compress(candidate(2).key, kSlotsPerBlock));
  EXPECT_EQ(scheduler_->stats().preemptions, 0) << "nobody before it gives way";
  EXPECT_THAT(scheduler_->compression_candidates(), SizeIs(1)) << "it still waits";
  EXPECT_THAT(step({1}), ElementsAre("1:68+1!")) << "and is held";
  EXPECT_TRUE(scheduler_->make_room_to_compress(candidate(2).key, kSlotsPerBlock));
  compress(candidate(2));
  EXPECT_THAT(step(), ElementsAre("2:64+1!"));
}

TEST_F(SchedulerCompress, OneThatIsAloneWithoutRoomGoesOnWithoutCompression) {
  start(6, options(128, 4));
  add(1, 16, windows_from(16));
  run_until_held();
  NewBlocks others = *kv_->new_blocks(0, 1);
  EXPECT_FALSE(scheduler_->make_room_to_compress(candidate(1).key, 2 * kSlotsPerBlock));
  EXPECT_THAT(scheduler_->compression_candidates(), IsEmpty());
  others.release();
  candidates_.clear();
  for (int position = 64; position < 96; ++position) {
    EXPECT_THAT(step(), ElementsAre(fmt::format("1:{}+1!", position)));
  }
  EXPECT_THAT(step(), ElementsAre("1:ended"));
}

TEST_F(SchedulerCompress, OneWhoseSlotsCannotBeHadGoesOnWithoutCompression) {
  start(20, options(128, 4));
  add(1, 16, windows_from(16));
  run_until_held();
  scheduler_->stop_compressing(candidate(1).key);
  EXPECT_THAT(scheduler_->compression_candidates(), IsEmpty());
  candidates_.clear();
  EXPECT_THAT(step(), ElementsAre("1:64+1!"));
  ASSERT_TRUE(scheduler_->has_work());
}

TEST_F(SchedulerCompress, OneThatIsAloneWaitsForRoomThatOthersHold) {
  start(6, options(128, 4));
  add(1, 16, windows_from(16));
  run_until_held();
  const NewBlocks others = *kv_->new_blocks(0, 1);
  scheduler_->set_slots_of_others(kSlotsPerBlock);
  EXPECT_FALSE(scheduler_->make_room_to_compress(candidate(1).key, 2 * kSlotsPerBlock));
  EXPECT_THAT(scheduler_->compression_candidates(), SizeIs(1)) << "it still waits";
  EXPECT_THAT(step(), IsEmpty());
  scheduler_->set_slots_of_others(0);
  EXPECT_FALSE(scheduler_->make_room_to_compress(candidate(1).key, 2 * kSlotsPerBlock));
  EXPECT_THAT(scheduler_->compression_candidates(), IsEmpty()) << "it does without";
}

TEST_F(SchedulerCompress, LostKvIsComputedAgainAFewTimes) {
  start(20, options(128, 4));
  add(1, 16, windows_from(16));
  for (int time = 0; time < 4; ++time) {
    run_until_held();
    const CompressionCandidate due = candidate(1);
    EXPECT_EQ(due.window, 0);
    EXPECT_EQ(scheduler_->recompute(due.key), time < 3) << time;
    EXPECT_EQ(kv_->stats().slots_used, 0);
    EXPECT_EQ(scheduler_->has_work(), time < 3);
  }
}

TEST_F(SchedulerCompress, TellsOfForksAndOfAllThatIsGivenUp) {
  start(40, options(64, 4));
  add(1, 16, windows_from(16), 3);
  step();
  EXPECT_THAT(listener_.told, ElementsAre("fork 0 1", "fork 0 2"));
  EXPECT_EQ(candidate(1, 2).kv, SequenceId(2));
  EXPECT_EQ(candidate(1, 1).num_choices, 1);
  listener_.told.clear();
  step({1});
  EXPECT_THAT(listener_.told, ElementsAre("forget 0", "forget 1", "forget 2"));
  listener_.told.clear();
  add(2, 16, {});
  step();
  scheduler_->cancel(2);
  EXPECT_THAT(listener_.told, ElementsAre("forget 3"));
}

TEST_F(SchedulerCompress, AForkIsToldOfBeforeItsParentEnds) {
  start(40, options(64, 4));
  add(1, 16, windows_from(16), 2);
  const StepPlan plan = scheduler_->schedule();
  StepOutput output;
  output.samples = {{7, true}, {7, false}};
  scheduler_->update(plan, output);
  EXPECT_THAT(listener_.told, ElementsAre("fork 0 1", "forget 0"));
}

TEST_F(SchedulerCompress, SlotsTakenForASequenceComeBackBeforeItIsEnded) {
  start(6, options(128, 4));
  add(1, 16, windows_from(80));  // not compressed within its six blocks
  step();
  const SequenceId sequence = candidate(1).kv;
  auto blocks = kv_->new_blocks(0, 2);
  ASSERT_TRUE(blocks.has_value());
  listener_.held.emplace_back(sequence, std::move(*blocks));
  for (int position = 16; position < 96; ++position) {
    EXPECT_THAT(step(), ElementsAre(fmt::format("1:{}+1!", position)));
  }
  EXPECT_THAT(listener_.told, ElementsAre("give back 0"));
  EXPECT_THAT(step(), ElementsAre("1:ended"));
}

TEST_F(SchedulerCompress, SlotsTakenForAVictimAreFreeForOthersAtOnce) {
  start(8, options(128, 4));
  add(1, 16, {});
  add(2, 16, windows_from(80));
  step();
  auto blocks = kv_->new_blocks(0, 3);
  ASSERT_TRUE(blocks.has_value());
  listener_.held.emplace_back(candidate(2).kv, std::move(*blocks));
  for (int position = 16; position < 128; ++position) {
    EXPECT_THAT(step(), testing::Contains(fmt::format("1:{}+1!", position)));
  }
  EXPECT_EQ(scheduler_->stats().preemptions, 1);
}

TEST_F(SchedulerCompress, OneThatIsDemotedWhileItIsHeldKeepsItsKv) {
  SchedulerOptions few = options(16, 4);
  start(14, few, false, true);
  add(1, 16, {});
  add(2, 16, windows_from(16));
  while (scheduler_->stats().demotions == 0) {
    step();
    ASSERT_EQ(scheduler_->stats().preemptions, scheduler_->stats().demotions);
    ASSERT_LT(kv_->stats().slots_used, 30);
  }
  EXPECT_THAT(scheduler_->compression_candidates(), IsEmpty());
  step({1});
  EXPECT_THAT(step(), IsEmpty()) << "it is held";
  const CompressionCandidate due = candidate(2);
  EXPECT_EQ(due.num_tokens, 64);
  EXPECT_EQ(due.kv, SequenceId(1)) << "it was not computed again";
  compress(due);
  EXPECT_THAT(step(), ElementsAre("2:64+1!"));
}

}  // namespace
}  // namespace karez
