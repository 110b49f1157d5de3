#include "engine/compression_turns.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "kv/kv_cache_manager.h"
#include "kv/tier/host_tier.h"
#include "support/tier/fake_clock.h"
#include "support/tier/held_tier.h"

namespace karez {
namespace compression_turns_test {

using Phases = std::vector<WindowCompressor::Phase>;

TEST(UnitsOfTurn, AsManyAsEveryTurnHasToDoToBeInTime) {
  const struct {
    Phases phases;
    int units;
  } cases[] = {
      {{}, 0},
      {{{0, 0}}, 0},
      {{{0, 100}}, 0},
      {{{5, 0}}, 5},   // now or never
      {{{5, 1}}, 3},   // this turn and one more
      {{{10, 9}}, 1},  // ten turns
      {{{11, 9}}, 2},
      {{{60, 15}, {0, 300}}, 4},
      {{{10, 9}, {10, 9}}, 2},   // together
      {{{10, 9}, {10, 19}}, 1},  // one after the other
      {{{10, 9}, {30, 19}}, 2},  // the later one is more
      {{{30, 19}, {10, 9}}, 2},  // in any order
      {{{8, 0}, {100, 99}}, 8},
      {{{8, 3}, {100, 99}}, 2},
  };
  for (const auto& one : cases) {
    EXPECT_EQ(units_of_turn(one.phases), one.units)
        << one.phases.size() << " phases, the first "
        << (one.phases.empty() ? 0 : one.phases[0].units);
  }
}

// Earliest deadline first with so many units in each turn: nobody is late, if nobody comes later.
TEST(UnitsOfTurn, NobodyIsLate) {
  std::mt19937 random(3);
  const auto roll = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  for (int round = 0; round < 200; ++round) {
    Phases phases(static_cast<std::size_t>(roll(1, 8)));
    for (WindowCompressor::Phase& phase : phases) {
      phase = {roll(0, 60), roll(0, 40)};
    }
    int most = 0;
    while (!phases.empty()) {
      int units = units_of_turn(phases);
      EXPECT_LE(most == 0 ? 0 : units, std::max(most, 1)) << "less as it goes on, not more";
      most = units;
      std::ranges::sort(phases, {}, &WindowCompressor::Phase::tokens_left);
      for (WindowCompressor::Phase& phase : phases) {
        const int done = std::min(units, phase.units);
        phase.units -= done;
        units -= done;
      }
      std::erase_if(phases, [](const WindowCompressor::Phase& phase) { return phase.units == 0; });
      for (WindowCompressor::Phase& phase : phases) {
        ASSERT_GT(phase.tokens_left, 0) << "it is late";
        --phase.tokens_left;
      }
    }
  }
}

// Computes what is planned, as if. How many sequences that were.
std::size_t step(Scheduler& scheduler) {
  const StepPlan plan = scheduler.schedule();
  StepOutput output;
  for (const PlannedSequence& planned : plan.sequences) {
    if (planned.wants_logits) {
      output.samples.push_back({7, false});
    }
  }
  scheduler.update(plan, output);
  return plan.sequences.size();
}

// Three that wait for their windows: whoever is passed over is held, and has its turn.
TEST(CompressionTurns, SoManySequencesAreCompressedInAStepAsTheOptionsSay) {
  for (const int most : {1, 2, 3, 100}) {
    SCOPED_TRACE(most);
    KVCacheSpec spec;
    spec.num_layers = 2;
    spec.num_kv_heads = 1;
    spec.head_dim = 16;
    const auto kv =
        KVCacheManager::create(spec, 400 * static_cast<std::int64_t>(spec.slot_bytes())).value();
    CompressionOptions options;
    options.score = CompressScore::kRecent;
    options.sequences_per_step = most;
    WindowCompressor compressor(*kv, nullptr, options, {1.0F, 0.0F});
    Scheduler scheduler(*kv, nullptr, {}, &compressor);
    for (RequestId id = 1; id <= 3; ++id) {
      Request request;
      request.id = id;
      request.prompt.assign(16, static_cast<TokenId>(id));
      scheduler.add(
          request,
          {.first_position = 16, .window_tokens = 32, .kept_tokens = 16, .recent_tokens = 16});
    }
    while (step(scheduler) > 0) {  // until all of them are held
    }
    for (const CompressionCandidate& candidate : scheduler.compression_candidates()) {
      ASSERT_TRUE(candidate.is_due());
    }
    CompressionTurns turns(compressor);
    for (std::int64_t windows = 0; windows < 3;) {
      EXPECT_TRUE(turns.run(scheduler, [](RequestId) { return true; }).empty());
      windows = std::min<std::int64_t>(3, windows + most);
      EXPECT_EQ(compressor.stats().windows, windows);
      EXPECT_EQ(step(scheduler), static_cast<std::size_t>(windows)) << "the others are held";
    }
  }
}

// Two sequences that run together, of four blocks each when their windows may be compressed early.
// How that went: early windows and preemptions until the next block is needed.
SchedulerStats stats_when_short(std::int64_t num_slots) {
  KVCacheSpec spec;
  spec.num_layers = 2;
  spec.num_kv_heads = 1;
  spec.head_dim = 16;
  const auto kv =
      KVCacheManager::create(spec, num_slots * static_cast<std::int64_t>(spec.slot_bytes()))
          .value();
  CompressionOptions options;
  options.score = CompressScore::kRecent;
  WindowCompressor compressor(*kv, nullptr, options, {1.0F, 0.0F});
  Scheduler scheduler(*kv, nullptr, {}, &compressor);
  for (RequestId id = 1; id <= 2; ++id) {
    Request request;
    request.id = id;
    request.prompt.assign(16, static_cast<TokenId>(id));
    scheduler.add(
        request,
        {.first_position = 16, .window_tokens = 32, .kept_tokens = 16, .recent_tokens = 16});
  }
  CompressionTurns turns(compressor);
  for (int tokens = 16; tokens < 60; ++tokens) {
    EXPECT_EQ(step(scheduler), 2U);
    EXPECT_TRUE(turns.run(scheduler, [](RequestId) { return true; }).empty());
  }
  return scheduler.stats();
}

TEST(CompressionTurns, AWindowIsEarlyOnlyIntoSlotsThatAreThere) {
  // 16 are in use, and a window takes two more.
  EXPECT_EQ(stats_when_short(17).early_windows, 0);
  EXPECT_EQ(stats_when_short(17).preemptions, 0);
  EXPECT_GT(stats_when_short(19).early_windows, 0);
  EXPECT_EQ(stats_when_short(19).preemptions, 0);
  EXPECT_EQ(stats_when_short(40).early_windows, 0) << "it is not short";
}

// Slots of idle blocks on their way home count as available, and a medium that hangs never gives
// them.
TEST(CompressionTurns, NobodyWaitsWithoutEndForATierThatHangs) {
  KVCacheSpec spec;
  spec.num_layers = 2;
  spec.num_kv_heads = 1;
  spec.head_dim = 16;
  const auto slot_bytes = static_cast<std::int64_t>(spec.slot_bytes());
  test::FakeClock clock;
  auto home = std::make_unique<test::HeldTier>(
      HostTier::create(
          {.block_bytes = spec.slot_bytes(), .capacity_bytes = 400 * slot_bytes, .num_workers = 0})
          .value(),
      clock);
  test::HeldTier& tier = *home;
  tier.holds_writes = true;
  tier.is_silent = true;
  // 12 of the sequence at its publication, 10 of idle blocks, 2 that are free, and the spare one.
  const auto kv = KVCacheManager::create(spec, 25 * slot_bytes, std::move(home), clock).value();
  const SequenceId other = kv->open();
  ASSERT_TRUE(kv->extend(other, 5 * kBlockSize));
  const BlockTableView table = kv->table(other, 0);
  const std::vector<BlockId> idle(table.begin(), table.end());
  std::ranges::for_each(idle, [&](BlockId block) { kv->cache(block); });
  kv->write_home(other);
  kv->residency()->advance();
  kv->close(other);
  {
    CompressionOptions options;
    options.score = CompressScore::kRecent;
    WindowCompressor compressor(*kv, nullptr, options, {1.0F, 0.0F});
    Scheduler scheduler(*kv, nullptr, {}, &compressor);
    Request request;
    request.id = 1;
    request.prompt.assign(16, 1);
    scheduler.add(
        request,
        {.first_position = 16, .window_tokens = 64, .kept_tokens = 48, .recent_tokens = 16});
    while (step(scheduler) > 0) {  // until it is held
    }
    const std::vector<CompressionCandidate> candidates = scheduler.compression_candidates();
    ASSERT_EQ(candidates.size(), 1U);
    ASSERT_TRUE(candidates[0].is_due());
    ASSERT_GE(kv->slots_available(), compressor.slots_to_pack(candidates[0].schedule));
    CompressionTurns turns(compressor);
    EXPECT_TRUE(turns.run(scheduler, [](RequestId) { return true; }).empty());
    EXPECT_EQ(compressor.stats().windows, 0);
    EXPECT_EQ(step(scheduler), 1U) << "it goes on without";
  }
  tier.let_go();
  kv->residency()->settle();
  std::ranges::for_each(idle, [&](BlockId block) { kv->uncache(block); });
  EXPECT_EQ(kv->check_invariants(), "");
}

}  // namespace compression_turns_test
}  // namespace karez
