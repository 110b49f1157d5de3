// Random operations on the KV store, beside a naive model and with real bytes in the slots.
//
// Every token has a value of its own. After each extend() its value is written into its place in
// all layers and heads; after each operation every token of every open sequence and of every pin is
// read back. A token that was lost, overwritten through another sequence, copied wrongly or put
// into a slot of another layer shows up as a wrong value.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <ostream>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kv/kv_cache_manager.h"
#include "support/reference_kv_cache.h"

namespace karez {
namespace {

struct Scenario {
  std::string name;
  KVCacheSpec spec;
  std::int64_t num_slots;
  std::size_t max_sequences = 9;  // more would only crowd the pool
};

void PrintTo(const Scenario& scenario, std::ostream* out) { *out << scenario.name; }

KVCacheSpec make_spec(int layers, int heads, std::vector<int> windows) {
  KVCacheSpec spec;
  spec.num_layers = layers;
  spec.num_kv_heads = heads;
  spec.head_dim = 16;
  spec.type = KvType::kBf16;
  spec.layer_windows = std::move(windows);
  return spec;
}

std::vector<Scenario> scenarios() {
  return {
      {"OneGroup", make_spec(2, 2, {}), 4 * 23},
      {"OneGroupWithSlotsLeftOver", make_spec(3, 1, {}), 3 * 17 + 2},
      {"WindowAndFull", make_spec(3, 1, {40, 0, 40}), 3 * 25 + 1},
      {"NarrowWindowFirstLayersLast", make_spec(4, 2, {0, 0, 5, 0}), 8 * 14 + 3},
      {"WindowOfOneToken", make_spec(2, 1, {1, 0}), 40},
      {"WindowsOnly", make_spec(2, 1, {16, 33}), 26},
      {"PoolOfThreeBlocks", make_spec(2, 2, {}), 4 * 3, 2},
  };
}

class Driver {
 public:
  Driver(const Scenario& scenario, unsigned seed, bool compresses)
      : spec_(scenario.spec),
        compresses_(compresses),
        max_sequences_(scenario.max_sequences),
        random_(seed),
        model_(scenario.spec, scenario.num_slots) {
    const auto slot_bytes = static_cast<std::int64_t>(spec_.slot_bytes());
    auto cache = KVCacheManager::create(spec_, scenario.num_slots * slot_bytes + slot_bytes - 1);
    EXPECT_TRUE(cache.has_value());
    cache_ = std::move(*cache);
  }

  void step() {
    const int dice = sequences_.size() > max_sequences_ ? kClose : roll(0, 99);
    if (sequences_.empty() || dice < 5) {
      open();
    } else if (dice < 58) {
      extend();
    } else if (dice < 71) {
      fork();
    } else if (dice < kClose) {
      truncate();
    } else if (dice < 93) {
      close();
    } else if (dice < 96 || pins_.empty()) {
      pin();
    } else {
      unpin();
    }
    // Beside the others, so that these are those that they were.
    if (compresses_ && roll(0, 5) == 0 && !sequences_.empty()) {
      compress();
    }
  }

  void check() {
    ASSERT_EQ(cache_->check_invariants(), "");
    const KVCacheStats stats = cache_->stats();
    ASSERT_EQ(stats.slots_used, model_.slots_used());
    ASSERT_EQ(stats.blocks_used, model_.blocks_used());
    ASSERT_EQ(stats.blocks_shared, model_.blocks_shared());
    ASSERT_EQ(stats.copies, model_.copies());
    ASSERT_LE(stats.used_bytes, stats.cap_bytes);
    for (const auto& [name, id] : sequences_) {
      ASSERT_EQ(cache_->num_tokens(id), model_.num_tokens(name));
      for (int g = 0; g < num_groups(); ++g) {
        ASSERT_NO_FATAL_FAILURE(check_table(name, g));
      }
    }
    for (const auto& [name, pin] : pins_) {
      ASSERT_NO_FATAL_FAILURE(check_pin(name));
    }
  }

  // What makes a run worth something: it has met the hard cases.
  int refused_extends() const { return refused_extends_; }
  int refused_cuts() const { return refused_cuts_; }
  std::int64_t copies() const { return cache_->stats().copies; }
  int compressed_windows() const { return compressed_windows_; }
  int archived_pages() const { return archived_pages_; }
  int refused_windows() const { return refused_windows_; }

  void close_all() {
    pins_.clear();
    for (const auto& [name, id] : sequences_) {
      cache_->close(id);
    }
    sequences_.clear();
    ASSERT_EQ(cache_->check_invariants(), "");
    ASSERT_EQ(cache_->stats().slots_used, 0);
  }

 private:
  static constexpr int kClose = 83;  // step()'s lowest dice for close()

  // A block that a pin holds: where its slots were.
  struct PinnedBlock {
    int group;
    BlockId id;
    std::vector<const std::byte*> slots;  // of all layers and heads of the group
  };
  struct Pin {
    BlockPin pin;
    std::vector<PinnedBlock> blocks;
  };

  int roll(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  int any_sequence() {
    return std::next(sequences_.begin(), roll(0, static_cast<int>(sequences_.size()) - 1))->first;
  }
  int num_groups() const { return static_cast<int>(cache_->layer_groups().size()); }
  const std::vector<int>& layers_of(int group) const {
    return cache_->layer_groups()[static_cast<std::size_t>(group)].layers;
  }

  void open() {
    const int name = next_name_++;
    sequences_[name] = cache_->open();
    model_.open(name);
  }

  void extend() {
    const int name = any_sequence();
    const SequenceId id = sequences_.at(name);
    constexpr int kSizes[] = {1, 1, 1, 2, 7, 15, 16, 17, 40, 100};
    const int count = roll(0, 9) == 0 ? roll(0, 70) : kSizes[roll(0, 9)];
    const KVCacheStats before = cache_->stats();
    const std::int64_t needed = cache_->slots_needed(id, count);
    const int old_tokens = cache_->num_tokens(id);
    const bool extended = cache_->extend(id, count);
    ASSERT_EQ(extended, model_.extend(name, count, next_value_)) << "extend by " << count;
    ASSERT_EQ(extended, needed <= before.slots_total - before.slots_used);
    if (!extended) {
      ++refused_extends_;
      return;
    }
    ASSERT_EQ(cache_->stats().slots_used - before.slots_used, needed);
    for (int i = 0; i < count; ++i) {
      write(id, old_tokens + i, next_value_++);
    }
  }

  void fork() {
    const int parent = any_sequence();
    const int tokens = cut_point(parent);
    const int child = next_name_++;
    const std::int64_t used = cache_->stats().slots_used;
    const auto id = cache_->fork(sequences_.at(parent), tokens);
    ASSERT_EQ(id.has_value(), model_.fork(parent, child, tokens)) << "fork at " << tokens;
    ASSERT_EQ(cache_->stats().slots_used, used);
    if (id) {
      sequences_[child] = *id;
    } else {
      ++refused_cuts_;
    }
  }

  void truncate() {
    const int name = any_sequence();
    const int tokens = cut_point(name);
    const bool done = cache_->truncate(sequences_.at(name), tokens);
    ASSERT_EQ(done, model_.truncate(name, tokens)) << "truncate to " << tokens;
    refused_cuts_ += done ? 0 : 1;
  }

  // Mostly near the end, where a window still has its blocks.
  int cut_point(int name) {
    const int tokens = model_.num_tokens(name);
    return roll(0, 2) == 0 ? roll(0, tokens) : std::max(0, tokens - roll(0, 20));
  }

  // A window of some blocks: some of its tokens are packed into new blocks, some go into blocks of
  // pages, the others are lost.
  void compress() {
    const auto group = cache_->compressible_group();
    const int name = any_sequence();
    const SequenceId id = sequences_.at(name);
    if (!group) {
      return;
    }
    const int done = model_.compressed_end(name, *group) / kBlockSize;
    const int full = model_.num_tokens(name) / kBlockSize;
    const int first = done > 0 ? done : roll(0, std::max(0, full - 1));
    const int count = std::min(full - first, roll(1, 4));
    if (count <= 0) {
      return;
    }
    const int num_kept = roll(0, count);
    const int num_pages = roll(num_kept == 0 ? 1 : 0, count - num_kept);
    const int pages_per_block = roll(1, 3);
    const int num_archived = (num_pages + pages_per_block - 1) / pages_per_block;
    const std::int64_t free_slots = cache_->stats().slots_total - cache_->stats().slots_used;
    auto kept = cache_->new_blocks(*group, num_kept);
    auto archived = cache_->new_blocks(*group, num_archived);
    ASSERT_EQ(kept.has_value() && archived.has_value(),
              cache_->slots_of_blocks(*group, num_kept + num_archived) <= free_slots);
    if (!kept || !archived || roll(0, 9) == 0) {
      ++refused_windows_;
      return;  // what was taken goes back
    }
    const auto gone = static_cast<std::size_t>(model_.num_gone(name, *group) / kBlockSize);
    std::vector<std::uint32_t> values;
    for (int block = first; block < first + count; ++block) {
      const auto& old = *model_.table(name, *group)[static_cast<std::size_t>(block) - gone];
      values.insert(values.end(), old.values.begin(), old.values.end());
    }
    const std::vector<ReferenceBlockPtr> kept_values = fill(*group, kept->blocks(), values);
    const std::vector<ReferenceBlockPtr> archived_values = fill(*group, archived->blocks(), values);
    std::vector<std::uint8_t> pages;
    std::vector<ReferenceBlockPtr> page_values;
    for (int page = 0; page < num_pages; ++page) {
      pages.push_back(static_cast<std::uint8_t>(page % pages_per_block));
      page_values.push_back(archived_values[static_cast<std::size_t>(page / pages_per_block)]);
    }
    cache_->compress(id, *group,
                     {std::int64_t{first} * kBlockSize, std::int64_t{count} * kBlockSize},
                     std::move(*kept), std::move(*archived), pages);
    model_.compress(name, *group, {first * kBlockSize, (first + count) * kBlockSize}, kept_values,
                    page_values);
    ++compressed_windows_;
    archived_pages_ += num_pages;
  }

  // Any of the values into all places of the blocks.
  std::vector<ReferenceBlockPtr> fill(int group, std::span<const BlockId> blocks,
                                      const std::vector<std::uint32_t>& values) {
    std::vector<ReferenceBlockPtr> filled;
    for (const BlockId block : blocks) {
      filled.push_back(std::make_shared<ReferenceBlock>());
      for (int token = 0; token < kBlockSize; ++token) {
        const std::uint32_t value =
            values[static_cast<std::size_t>(roll(0, static_cast<int>(values.size()) - 1))];
        filled.back()->values[static_cast<std::size_t>(token)] = value;
        for (const int layer : layers_of(group)) {
          write(layer, block, token, value);
        }
      }
    }
    return filled;
  }

  void close() {
    const int name = any_sequence();
    cache_->close(sequences_.at(name));
    model_.close(name);
    sequences_.erase(name);
  }

  void pin() {
    const int name = any_sequence();
    const int pin_name = next_name_++;
    Pin& pin = pins_[pin_name];
    pin.pin = cache_->pin(sequences_.at(name));
    model_.pin(name, pin_name);
    for (int g = 0; g < num_groups(); ++g) {
      for (const BlockId block : cache_->table(sequences_.at(name), g)) {
        if (!block.is_none()) {
          pin.blocks.push_back({g, block, slots_of(g, block)});
        }
      }
    }
  }

  void unpin() {
    const auto pin = std::next(pins_.begin(), roll(0, static_cast<int>(pins_.size()) - 1));
    model_.unpin(pin->first);
    pins_.erase(pin);
  }

  std::vector<const std::byte*> slots_of(int group, BlockId block) const {
    std::vector<const std::byte*> slots;
    for (const int layer : layers_of(group)) {
      for (int head = 0; head < spec_.num_kv_heads; ++head) {
        slots.push_back(cache_->layer(layer).slot(head, block));
      }
    }
    return slots;
  }

  // A token's bytes in a slot are filled with a number that only this layer and head writes.
  std::size_t token_bytes() const { return spec_.slot_bytes() / kBlockSize; }
  std::uint32_t tag(std::uint32_t value, int layer, int head) const {
    return value == 0 ? 0 : value * 64 + static_cast<std::uint32_t>(layer * 8 + head);
  }

  void write(SequenceId id, int position, std::uint32_t value) {
    for (int layer = 0; layer < spec_.num_layers; ++layer) {
      const int group = cache_->group_of_layer(layer);
      const BlockTableView table = cache_->table(id, group);
      const bool is_compressible = group == cache_->compressible_group();
      const int place = position - (is_compressible ? cache_->num_gone(id) : 0);
      write(layer, table[static_cast<std::size_t>(place / kBlockSize)], place % kBlockSize, value);
    }
  }
  void write(int layer, BlockId block, int token, std::uint32_t value) {
    for (int head = 0; head < spec_.num_kv_heads; ++head) {
      const std::vector<std::uint32_t> bytes(token_bytes() / 4, tag(value, layer, head));
      std::memcpy(
          cache_->layer(layer).slot(head, block) + token_bytes() * static_cast<std::size_t>(token),
          bytes.data(), token_bytes());
    }
  }

  void check_table(int name, int group) {
    const BlockTableView table = cache_->table(sequences_.at(name), group);
    const std::vector<ReferenceBlockPtr>& expected = model_.table(name, group);
    ASSERT_EQ(table.size(), expected.size());
    const int num_places = model_.num_tokens(name) - model_.num_gone(name, group);
    if (group == cache_->compressible_group()) {
      ASSERT_EQ(cache_->num_gone(sequences_.at(name)), model_.num_gone(name, group));
      const ArchivedEntries archived = cache_->archived(sequences_.at(name));
      ASSERT_EQ(archived.count(), model_.num_archived(name, group));
      if (archived.count() > 0) {
        ASSERT_EQ(archived.begin, model_.archived_begin(name, group));
      }
    }
    for (std::size_t i = 0; i < table.size(); ++i) {
      ASSERT_EQ(table[i].is_none(), expected[i] == nullptr) << "block " << i;
      if (expected[i] != nullptr) {
        const int tokens = std::min(kBlockSize, num_places - static_cast<int>(i) * kBlockSize);
        ASSERT_NO_FATAL_FAILURE(check_bytes(group, table[i], *expected[i], tokens))
            << "sequence " << name << ", block " << i;
      }
    }
  }

  void check_pin(int pin_name) {
    const auto& expected = model_.pinned(pin_name);
    std::vector<std::size_t> next(expected.size());
    for (const PinnedBlock& block : pins_.at(pin_name).blocks) {
      const auto group = static_cast<std::size_t>(block.group);
      ASSERT_EQ(slots_of(block.group, block.id), block.slots) << "a pinned block has moved";
      const ReferenceBlock& values = *expected[group][next[group]++];
      ASSERT_NO_FATAL_FAILURE(check_bytes(block.group, block.id, values, kBlockSize))
          << "pin " << pin_name;
    }
  }

  void check_bytes(int group, BlockId block, const ReferenceBlock& expected, int num_tokens) {
    for (const int layer : layers_of(group)) {
      for (int head = 0; head < spec_.num_kv_heads; ++head) {
        const std::byte* slot = cache_->layer(layer).slot(head, block);
        for (int t = 0; t < num_tokens; ++t) {
          const std::uint32_t value = expected.values[static_cast<std::size_t>(t)];
          if (value == 0) {
            continue;  // never written: whatever the slot held before
          }
          const std::byte* bytes = slot + token_bytes() * static_cast<std::size_t>(t);
          std::uint32_t first = 0;
          std::uint32_t last = 0;
          std::memcpy(&first, bytes, 4);
          std::memcpy(&last, bytes + token_bytes() - 4, 4);
          ASSERT_EQ(first, tag(value, layer, head)) << "layer " << layer << " token " << t;
          ASSERT_EQ(last, tag(value, layer, head)) << "layer " << layer << " token " << t;
        }
      }
    }
  }

  KVCacheSpec spec_;
  bool compresses_;
  std::size_t max_sequences_;
  std::mt19937 random_;
  ReferenceKVCache model_;
  std::unique_ptr<KVCacheManager> cache_;
  std::map<int, SequenceId> sequences_;
  std::map<int, Pin> pins_;  // after cache_: pins go first
  int next_name_ = 0;
  std::uint32_t next_value_ = 1;
  int refused_extends_ = 0;
  int refused_cuts_ = 0;
  int compressed_windows_ = 0;
  int archived_pages_ = 0;
  int refused_windows_ = 0;
};

class KVCacheManagerProperty : public testing::TestWithParam<Scenario> {};

TEST_P(KVCacheManagerProperty, BehavesLikeTheNaiveModelAndLosesNoToken) {
  constexpr int kSteps = 1500;
  int refused_extends = 0;
  int refused_cuts = 0;
  std::int64_t copies = 0;
  for (const unsigned seed : {1U, 2U, 3U, 4U}) {
    Driver driver(GetParam(), seed, false);
    for (int step = 0; step < kSteps; ++step) {
      driver.step();
      if (!HasFatalFailure()) {
        driver.check();
      }
      if (HasFatalFailure()) {
        FAIL() << "seed " << seed << " step " << step;
      }
    }
    refused_extends += driver.refused_extends();
    refused_cuts += driver.refused_cuts();
    copies += driver.copies();
    driver.close_all();
  }
  EXPECT_GT(refused_extends, 200) << "the pool is too big to run out";
  EXPECT_GT(copies, 20) << "shared blocks were hardly ever written";
  if (GetParam().spec.layer_groups().size() > 1) {
    EXPECT_GT(refused_cuts, 40) << "windows hardly ever let go of a block";
  }
}

TEST_P(KVCacheManagerProperty, CompressesWindowsLikeTheNaiveModel) {
  constexpr int kSteps = 1500;
  int windows = 0;
  int pages = 0;
  int refused = 0;
  std::int64_t copies = 0;
  for (const unsigned seed : {5U, 6U, 7U, 8U}) {
    Driver driver(GetParam(), seed, true);
    for (int step = 0; step < kSteps; ++step) {
      driver.step();
      if (!HasFatalFailure()) {
        driver.check();
      }
      if (HasFatalFailure()) {
        FAIL() << "seed " << seed << " step " << step;
      }
    }
    windows += driver.compressed_windows();
    pages += driver.archived_pages();
    refused += driver.refused_windows();
    copies += driver.copies();
    driver.close_all();
  }
  const std::vector<LayerGroup> groups = GetParam().spec.layer_groups();
  const bool is_compressible =
      std::ranges::any_of(groups, [](const LayerGroup& group) { return group.window == 0; });
  EXPECT_EQ(windows > 20, is_compressible) << windows;
  EXPECT_EQ(pages > 10, is_compressible) << pages;
  EXPECT_EQ(refused > 10, is_compressible) << refused;
  EXPECT_GT(copies, 20) << "shared blocks were hardly ever written";
}

std::string scenario_name(const testing::TestParamInfo<Scenario>& scenario) {
  return scenario.param.name;
}

INSTANTIATE_TEST_SUITE_P(Pools, KVCacheManagerProperty, testing::ValuesIn(scenarios()),
                         scenario_name);

}  // namespace
}  // namespace karez
