// Random operations on a KV store with a home tier, with real bytes in the slots.
//
// Every token of every sequence has a value of its own, written into its place in all layers and
// heads. Whatever was evicted, demoted, shared, copied or freed with a write in flight in between:
// what a layer asks for holds the bytes that were written, or is reported as lost. Hints, whether
// they are right, random or none, change nothing of that, nor what succeeds.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kv/kv_cache_manager.h"
#include "kv/residency.h"
#include "kv/tier/host_tier.h"
#include "support/tier/fake_clock.h"
#include "support/tier/faulty_tier.h"

namespace karez {
namespace residency_property_test {

struct Scenario {
  std::string name;
  std::vector<int> windows;
  int heads = 1;
  std::int64_t num_slots = 0;
  std::int64_t home_blocks = 0;
  int workers = 0;
  test::Faults faults;
};

void PrintTo(const Scenario& scenario, std::ostream* out) { *out << scenario.name; }

std::vector<Scenario> scenarios() {
  return {
      {.name = "Inline", .windows = {0, 0, 0}, .num_slots = 90, .home_blocks = 2400},
      {.name = "WorkerAndTwoHeads",
       .windows = {0, 0},
       .heads = 2,
       .num_slots = 120,
       .home_blocks = 2400,
       .workers = 1},
      {.name = "Windows", .windows = {40, 0, 5, 0}, .num_slots = 130, .home_blocks = 2400},
      {.name = "SmallHome", .windows = {0, 0, 0}, .num_slots = 90, .home_blocks = 100},
      {.name = "FailingTransfers",
       .windows = {0, 0, 0},
       .num_slots = 90,
       .home_blocks = 2400,
       .faults = {.fail_every = 53}},
      {.name = "SlowTransfers",
       .windows = {0, 40},
       .num_slots = 40,
       .home_blocks = 2400,
       .faults = {.delay = std::chrono::milliseconds(120)}},  // more than two operations
      {.name = "SilentReads",
       .windows = {0, 0, 0},
       .num_slots = 60,
       .home_blocks = 2400,
       .faults = {.lose_every = 67, .hits_writes = false}},
      {.name = "FailingReads",
       .windows = {0, 0, 0},
       .num_slots = 60,
       .home_blocks = 2400,
       .faults = {.fail_every = 17, .hits_writes = false, .delay = std::chrono::milliseconds(120)}},
  };
}

enum class Hints { kNone, kRandom, kExact };

class Driver {
 public:
  Driver(const Scenario& scenario, unsigned seed, Hints hints)
      : scenario_(scenario), random_(seed), hints_(hints), hint_random_(seed) {
    spec_.num_layers = static_cast<int>(scenario.windows.size());
    spec_.num_kv_heads = scenario.heads;
    spec_.head_dim = 16;
    spec_.layer_windows = scenario.windows;
    const auto slot_bytes = static_cast<std::int64_t>(spec_.slot_bytes());
    std::unique_ptr<Tier> tier =
        HostTier::create({.block_bytes = spec_.slot_bytes(),
                          .capacity_bytes = scenario.home_blocks * slot_bytes,
                          .num_workers = scenario.workers})
            .value();
    // Worker threads wait for the machine's clock.
    const Clock& clock = scenario.workers > 0 ? Clock::steady() : clock_;
    auto faulty = std::make_unique<test::FaultyTier>(
        std::move(tier), scenario.faults, [](ExtentId, int) {}, clock);
    faulty_ = faulty.get();
    kv_ = KVCacheManager::create(spec_, scenario.num_slots * slot_bytes, std::move(faulty), clock)
              .value();
  }

  void step() {
    const int dice = sequences_.size() > 9 ? 80 : roll(0, 99);
    if (sequences_.empty() || dice < 8) {
      sequences_[next_name_++] = {kv_->open(), {}};
    } else if (dice < 50) {
      extend();
    } else if (dice < 60) {
      fork();
    } else if (dice < 68) {
      truncate();
    } else if (dice < 76) {
      kv_->demote(any()->second.id);
    } else if (dice < 84) {
      close(any());
    } else {
      read(any());
    }
    clock_.advance(std::chrono::milliseconds(50));
    if (faulty_->num_lost() > 5) {
      faulty_->report_lost();
    }
    kv_->residency()->advance();
  }

  void check() const {
    ASSERT_EQ(kv_->check_invariants(), "");
    const KVCacheStats stats = kv_->stats();
    ASSERT_LE(stats.slots_used + stats.slots_idle, scenario_.num_slots);
  }
  void close_all() {
    while (!sequences_.empty()) {
      close(sequences_.begin());
    }
    faulty_->report_lost();
    kv_->residency()->settle();
    kv_->residency()->advance();
    ASSERT_EQ(kv_->check_invariants(), "");
    ASSERT_EQ(kv_->stats().slots_used, 0);
    ASSERT_EQ(kv_->residency()->num_loose_slots(), 1);
    ASSERT_EQ(kv_->residency()->stats().home_bytes_used, 0);
    const PrefetchStats prefetch = stats().prefetch;
    const PrefetchStats::BySource total = prefetch.total();
    ASSERT_EQ(total.fetched, total.useful + total.late + total.wasted + prefetch.failed);
  }
  // What succeeded, in order.
  const std::vector<bool>& outcomes() const { return outcomes_; }
  ResidencyStats stats() const { return kv_->residency()->stats(); }

 private:
  struct Sequence {
    SequenceId id;
    std::vector<std::uint32_t> values;  // [tokens]
  };
  using Sequences = std::map<int, Sequence>;

  int roll(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  Sequences::iterator any() {
    return std::next(sequences_.begin(), roll(0, static_cast<int>(sequences_.size()) - 1));
  }

  void extend() {
    const auto it = any();
    Sequence& sequence = it->second;
    const int count = roll(0, 3) == 0 ? roll(1, 60) : roll(1, 17);
    const int old_tokens = kv_->num_tokens(sequence.id);
    if (!note(kv_->extend(sequence.id, count))) {
      // Its last block is lost, or there is no room: others have to go.
      close(sequences_.size() > 1 ? std::next(sequences_.begin()) : sequences_.begin());
      return;
    }
    for (int i = 0; i < count; ++i) {
      sequence.values.push_back(++next_value_);
      write(sequence.id, old_tokens + i, next_value_);
    }
    kv_->write_home(sequence.id);
  }

  void fork() {
    const Sequence& parent = any()->second;
    const int tokens = cut(parent);
    const auto id = kv_->fork(parent.id, tokens);
    if (note(id.has_value())) {
      sequences_[next_name_++] = {*id, {parent.values.begin(), parent.values.begin() + tokens}};
    }
  }

  void truncate() {
    Sequence& sequence = any()->second;
    const int tokens = cut(sequence);
    if (note(kv_->truncate(sequence.id, tokens))) {
      sequence.values.resize(static_cast<std::size_t>(tokens));
    }
  }

  int cut(const Sequence& sequence) {
    const int tokens = static_cast<int>(sequence.values.size());
    return roll(0, 2) == 0 ? roll(0, tokens) : std::max(0, tokens - roll(0, 20));
  }

  void close(Sequences::iterator it) {
    kv_->close(it->second.id);
    sequences_.erase(it);
  }

  bool note(bool outcome) {
    outcomes_.push_back(outcome);
    return outcome;
  }

  std::uint32_t tag(std::uint32_t value, int layer, int head) const {
    return value * 64 + static_cast<std::uint32_t>(layer * 8 + head);
  }
  std::byte* place(SequenceId id, int layer, int head, int position) const {
    const BlockTableView table = kv_->table(id, kv_->group_of_layer(layer));
    return kv_->layer(layer).slot(head, table[static_cast<std::size_t>(position / kBlockSize)]) +
           spec_.slot_bytes() / kBlockSize * static_cast<std::size_t>(position % kBlockSize);
  }
  void write(SequenceId id, int position, std::uint32_t value) {
    for (int layer = 0; layer < spec_.num_layers; ++layer) {
      for (int head = 0; head < spec_.num_kv_heads; ++head) {
        const std::uint32_t tagged = tag(value, layer, head);
        std::memcpy(place(id, layer, head, position), &tagged, sizeof(tagged));
      }
    }
  }

  int hint_roll(int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(hint_random_);
  }
  // Requires: a layer has been loaded.
  void give_hints(const Sequence& sequence, int layer, int first_read) {
    Residency& residency = *kv_->residency();
    const auto hint = [&](const Sequence& of, int of_layer, int position) {
      const BlockTableView table = kv_->table(of.id, kv_->group_of_layer(of_layer));
      const BlockId block = table[static_cast<std::size_t>(position / kBlockSize)];
      if (!block.is_none()) {
        residency.hint(of_layer, hint_roll(0, spec_.num_kv_heads - 1), block,
                       static_cast<LookaheadSource>(hint_roll(0, kNumLookaheadSources - 1)));
      }
    };
    if (hints_ == Hints::kNone) {
      return;
    }
    if (hints_ == Hints::kExact && layer + 1 < spec_.num_layers) {
      for (int p = first_read; p < kv_->num_tokens(sequence.id); ++p) {
        hint(sequence, layer + 1, p);
      }
    }
    // After the last layer these are the ones that other operations meet under way.
    for (int i = hint_roll(0, 12); hints_ == Hints::kRandom && i > 0; --i) {
      const auto any =
          std::next(sequences_.begin(), hint_roll(0, static_cast<int>(sequences_.size()) - 1));
      const int tokens = kv_->num_tokens(any->second.id);
      if (tokens > 0) {
        hint(any->second, hint_roll(0, spec_.num_layers - 1), hint_roll(0, tokens - 1));
      }
    }
    if (hint_roll(0, 9) > 0) {
      residency.prefetch();
    }
  }

  // A step of the sequence: some of what its next row may see, layer by layer.
  void read(Sequences::iterator it) {
    Residency& residency = *kv_->residency();
    residency.set_fetch_cap(hint_roll(0, 1) * hint_roll(1, 30) *
                            static_cast<std::int64_t>(spec_.slot_bytes()));
    residency.begin_step();
    const Sequence& sequence = it->second;
    const int tokens = kv_->num_tokens(sequence.id);
    const int first_read = roll(0, 1) == 0 ? 0 : roll(0, tokens);
    bool is_lost = false;
    for (int layer = 0; layer < spec_.num_layers; ++layer) {
      const int window = spec_.layer_windows[static_cast<std::size_t>(layer)];
      const int first = std::max(first_read, window == 0 ? 0 : tokens - window + 1);
      const BlockTableView table = kv_->table(sequence.id, kv_->group_of_layer(layer));
      residency.begin_layer(layer);
      for (int p = first; p < tokens; ++p) {
        for (int head = 0; head < spec_.num_kv_heads; ++head) {
          residency.need(head, table[static_cast<std::size_t>(p / kBlockSize)]);
        }
      }
      is_lost = !residency.load().empty() || is_lost;
      for (int p = first; p < tokens && !is_lost; ++p) {
        for (int head = 0; head < spec_.num_kv_heads; ++head) {
          std::uint32_t seen = 0;
          std::memcpy(&seen, place(sequence.id, layer, head, p), sizeof(seen));
          ASSERT_EQ(seen, tag(sequence.values[static_cast<std::size_t>(p)], layer, head))
              << "layer " << layer << " token " << p;
        }
      }
      give_hints(sequence, layer, first_read);
    }
    residency.end_step();
    if (note(is_lost)) {
      close(it);
    }
  }

  Scenario scenario_;
  KVCacheSpec spec_;
  std::mt19937 random_;
  Hints hints_;
  std::mt19937 hint_random_;
  test::FakeClock clock_;
  std::unique_ptr<KVCacheManager> kv_;
  test::FaultyTier* faulty_ = nullptr;
  std::vector<bool> outcomes_;
  Sequences sequences_;
  int next_name_ = 0;
  std::uint32_t next_value_ = 0;
};

class ResidencyProperty : public testing::TestWithParam<Scenario> {};

TEST_P(ResidencyProperty, EveryTokenIsReadBackOrReportedAsLostWhateverIsHinted) {
  const test::Faults& faults = GetParam().faults;
  const bool has_failures = faults.fail_every > 0 || faults.lose_every > 0;
  std::map<unsigned, std::vector<bool>> outcomes_without;  // index: seed
  for (const Hints hints : {Hints::kNone, Hints::kRandom, Hints::kExact}) {
    ResidencyStats sum;
    PrefetchStats::BySource fetches;
    std::int64_t failed = 0;
    for (const unsigned seed : {1U, 2U, 3U}) {
      Driver driver(GetParam(), seed, hints);
      for (int step = 0; step < 1000; ++step) {
        driver.step();
        if (!HasFatalFailure()) {
          driver.check();
        }
        if (HasFatalFailure()) {
          FAIL() << "seed " << seed << " step " << step << " hints " << static_cast<int>(hints);
        }
      }
      if (hints == Hints::kNone) {
        outcomes_without[seed] = driver.outcomes();
      } else if (!has_failures) {
        EXPECT_EQ(driver.outcomes(), outcomes_without[seed])
            << "seed " << seed << " hints " << static_cast<int>(hints);
      }
      driver.close_all();
      const ResidencyStats stats = driver.stats();
      sum.demand_misses += stats.demand_misses;
      sum.evictions += stats.evictions;
      sum.blocks_lost += stats.blocks_lost;
      sum.write_failures += stats.write_failures;
      failed += stats.prefetch.failed;
      fetches.useful += stats.prefetch.total().useful;
      fetches.late += stats.prefetch.total().late;
      fetches.wasted += stats.prefetch.total().wasted;
    }
    // The hard cases were met.
    EXPECT_GT(sum.demand_misses, has_failures || hints != Hints::kNone ? 20 : 100);
    EXPECT_GT(sum.evictions, has_failures ? 20 : 100);
    EXPECT_EQ(sum.write_failures > 0, faults.fail_every > 0 && faults.hits_writes);
    EXPECT_EQ(sum.blocks_lost > 0, has_failures);
    EXPECT_EQ(fetches.useful + fetches.late > 20, hints != Hints::kNone);
    EXPECT_TRUE(fetches.wasted > 20 || hints != Hints::kRandom);
    EXPECT_EQ(failed > 0, has_failures && hints != Hints::kNone);
    if (faults.delay > Clock::Duration::zero() && hints == Hints::kExact) {
      EXPECT_GT(fetches.late, 20);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Stores, ResidencyProperty, testing::ValuesIn(scenarios()),
                         [](const testing::TestParamInfo<Scenario>& scenario) {
                           return scenario.param.name;
                         });

}  // namespace residency_property_test
}  // namespace karez
