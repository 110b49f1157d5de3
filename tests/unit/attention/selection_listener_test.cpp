// What a listener is told of the lists, and what rows compute from lists that it has shortened.
#include "attention/selection_listener.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "support/attention_harness.h"

namespace karez {
namespace {

using test::AttentionHarness;
using test::HarnessOptions;
using test::largest_difference;
using test::RowRange;
using test::same_bits;

// A list of 40 blocks: two chunks and a half.
constexpr int kListBlocks = 40;

HarnessOptions options(CpuLevel level, SelectPer per = SelectPer::kHead) {
  HarnessOptions out;
  out.cpu_level = level;
  out.num_heads = 6;
  out.num_kv_heads = 2;
  out.head_dim = 32;
  out.max_threads = 8;
  out.query_range = 6.0F;
  out.layer_windows = {0, 0};
  out.sparse.token_budget = kListBlocks * kBlockSize;
  out.sparse.recent_window = 48;
  out.sparse.select_per = per;
  return out;
}

// Leaves the last `count` entries.
void keep_last(SelectedBlocks& list, std::size_t count) {
  std::copy(list.blocks.end() - static_cast<std::ptrdiff_t>(count), list.blocks.end(),
            list.blocks.begin());
  list.blocks = list.blocks.first(count);
}

class ShortenedLists : public testing::TestWithParam<CpuLevel> {};

INSTANTIATE_TEST_SUITE_P(All, ShortenedLists, testing::ValuesIn(supported_cpu_levels()),
                         [](const testing::TestParamInfo<CpuLevel>& level) {
                           std::string name(to_string(level.param));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(ShortenedLists, AreAttendedToExactlyWhateverIsLeft) {
  for (const SelectPer per : {SelectPer::kHead, SelectPer::kLayer}) {
    for (const std::size_t left : {1U, 15U, 16U, 17U, 32U, 33U, 39U, 40U}) {
      std::vector<float> first;
      for (const int num_threads : {1, 8}) {  // with 8 the chunks of a row are split
        AttentionHarness harness(options(GetParam(), per));
        // Each KV head, row and layer has another number of entries left.
        harness.set_listener([left](int layer, std::span<SelectedBlocks> selected) {
          for (SelectedBlocks& list : selected) {
            ASSERT_EQ(list.blocks.size(), std::size_t{kListBlocks});
            const std::size_t skew = static_cast<std::size_t>(list.kv_head + list.position % 2) * 9;
            keep_last(list, layer == 0 ? left : std::min<std::size_t>(left + skew, kListBlocks));
          }
        });
        const SequenceId sequence = harness.open(1);
        const SequenceId other = harness.open(2);
        harness.fill(sequence, 1500);
        harness.fill(other, 900);
        const std::vector<RowRange> ranges = {{sequence, 2, 0}, {other, 1, 0}};
        const std::vector<float> out = harness.run(ranges, num_threads);
        EXPECT_EQ(harness.selections().size(), 2U * 2U * 3U);
        EXPECT_LT(largest_difference(out, harness.expected(ranges)), 2e-6)
            << left << " " << num_threads;
        const auto slot = static_cast<std::int64_t>(harness.kv().spec().slot_bytes());
        EXPECT_EQ(harness.planned_read_bytes(0), slot * 2 * 3 * static_cast<std::int64_t>(left));
        if (first.empty()) {
          first = out;
        }
        EXPECT_TRUE(same_bits(out, first)) << left;
      }
    }
  }
}

TEST_P(ShortenedLists, EntriesMayBeDroppedAnywhereAndTheNextLayerAndStepBeginWhole) {
  AttentionHarness harness(options(GetParam()));
  std::mt19937 random(5);
  std::size_t num_lists = 0;
  harness.set_listener([&](int layer, std::span<SelectedBlocks> selected) {
    for (SelectedBlocks& list : selected) {
      ASSERT_EQ(list.blocks.size(), std::size_t{kListBlocks});
      ++num_lists;
      if (layer == 1) {
        continue;
      }
      const std::int32_t own = list.blocks.back();
      const auto dropped = std::ranges::remove_if(
          list.blocks, [&](std::int32_t block) { return block != own && random() % 2 == 0; });
      list.blocks = {list.blocks.begin(), dropped.begin()};
    }
  });
  const SequenceId sequence = harness.open(1);
  harness.fill(sequence, 1500);
  for (int step = 0; step < 6; ++step) {
    const std::vector<RowRange> ranges = {{sequence, 3, 0}};
    const std::vector<float> out = harness.run(ranges, 3);
    EXPECT_LT(largest_difference(out, harness.expected(ranges)), 2e-6);
  }
  EXPECT_EQ(num_lists, 6U * 2U * 3U * 2U);
}

TEST_P(ShortenedLists, OfSomeRowsLeaveTheBitsOfOthersAlone) {
  // A draft's rows: two that count and two hints, whose lists lose what a tier would not have.
  const auto run = [this](int num_hint_rows, bool shortens) {
    AttentionHarness harness(options(GetParam()));
    std::vector<bool> hints;
    harness.set_listener([&](int, std::span<SelectedBlocks> selected) {
      for (SelectedBlocks& list : selected) {
        hints.push_back(list.is_hint);
        if (list.is_hint && shortens) {
          keep_last(list, 7);
        }
      }
    });
    const SequenceId sequence = harness.open(1);
    harness.fill(sequence, 1500);
    std::vector<float> out = harness.run({{sequence, 4, 0, num_hint_rows}}, 3);
    EXPECT_EQ(std::ranges::count(hints, true), num_hint_rows * 2 * 2);
    return out;
  };
  const std::vector<float> plain = run(0, false);
  EXPECT_TRUE(same_bits(run(2, false), plain));
  const std::vector<float> shortened = run(2, true);
  const auto row_floats = std::ptrdiff_t{6} * 32;
  for (const std::ptrdiff_t layer : {0, 1}) {
    const std::ptrdiff_t first = layer * 4 * row_floats;
    const auto rows = [&](const std::vector<float>& all, std::ptrdiff_t begin, std::ptrdiff_t end) {
      return std::vector<float>(all.begin() + first + begin * row_floats,
                                all.begin() + first + end * row_floats);
    };
    EXPECT_TRUE(same_bits(rows(shortened, 0, 2), rows(plain, 0, 2)));
    EXPECT_FALSE(same_bits(rows(shortened, 2, 4), rows(plain, 2, 4)));
  }
}

// What the listener was told, by (layer, position, KV head).
struct Told {
  std::vector<std::int32_t> blocks;
  std::vector<float> masses;
  std::vector<std::int32_t> runners_up;
};
std::map<std::vector<int>, Told> told_with(const SparseOptions& sparse) {
  HarnessOptions o = options(CpuLevel::kPortable);
  o.sparse = sparse;
  AttentionHarness harness(o);
  std::map<std::vector<int>, Told> told;
  harness.set_listener([&](int layer, std::span<SelectedBlocks> selected) {
    for (const SelectedBlocks& list : selected) {
      told[{layer, list.position, list.kv_head}] = {
          {list.blocks.begin(), list.blocks.end()},
          {list.masses.begin(), list.masses.end()},
          {list.runners_up.begin(), list.runners_up.end()}};
    }
  });
  const SequenceId sequence = harness.open(1);
  harness.fill(sequence, 1500);
  harness.run({{sequence, 3, 0}}, 2);
  EXPECT_EQ(told.size(), 2U * 3U * 2U);
  return told;
}

TEST(SelectionListener, RunnersUpAreWhatALargerBudgetWouldAdd) {
  constexpr int kMore = 3;
  for (const SelectPer per : {SelectPer::kHead, SelectPer::kLayer}) {
    for (const int two_level_blocks : {1000, 60}) {
      SparseOptions sparse = options(CpuLevel::kPortable, per).sparse;
      sparse.two_level_blocks = two_level_blocks;
      // Few, so that the first level has as many candidates for both budgets.
      sparse.token_budget = 8 * kBlockSize;
      sparse.runners_up = kMore;
      SparseOptions larger = sparse;
      larger.token_budget += kMore * kBlockSize;
      larger.runners_up = 0;
      auto with_more = told_with(larger);
      for (const auto& [key, told] : told_with(sparse)) {
        ASSERT_EQ(told.runners_up.size(), std::size_t{kMore});
        EXPECT_TRUE(told.masses.empty());
        std::vector<std::int32_t> both = told.blocks;
        both.insert(both.end(), told.runners_up.begin(), told.runners_up.end());
        EXPECT_THAT(both, testing::UnorderedElementsAreArray(with_more[key].blocks));
        EXPECT_TRUE(with_more[key].runners_up.empty());
      }
    }
  }
}

TEST(SelectionListener, RunnersUpAreFewerWhereTheFirstLevelLeavesFew) {
  SparseOptions sparse = options(CpuLevel::kPortable, SelectPer::kHead).sparse;
  sparse.two_level_blocks = 60;
  sparse.token_budget = 8 * kBlockSize;
  sparse.runners_up = 80;
  for (const auto& [key, told] : told_with(sparse)) {
    EXPECT_GT(told.runners_up.size(), 0U);
    EXPECT_LT(told.blocks.size() + told.runners_up.size(), 60U);
    std::set<std::int32_t> all(told.blocks.begin(), told.blocks.end());
    all.insert(told.runners_up.begin(), told.runners_up.end());
    EXPECT_EQ(all.size(), told.blocks.size() + told.runners_up.size()) << "each of them once";
    EXPECT_GE(*all.begin(), 0);
    EXPECT_LT(*all.rbegin(), 94);
  }
}

TEST(SelectionListener, MassesAreSharesOfTheWholeContext) {
  for (const SelectPer per : {SelectPer::kHead, SelectPer::kLayer}) {
    SparseOptions sparse = options(CpuLevel::kPortable, per).sparse;
    sparse.list_masses = true;
    const auto few = told_with(sparse);
    sparse.token_budget = 93 * kBlockSize;  // all but one of 94 blocks
    auto most = told_with(sparse);
    for (const auto& [key, told] : few) {
      ASSERT_EQ(told.masses.size(), told.blocks.size());
      const Told& nearly_all = most[key];
      double sum = 0.0;
      for (std::size_t i = 0; i < nearly_all.masses.size(); ++i) {
        sum += static_cast<double>(nearly_all.masses[i]);
        // The same estimate, however many blocks are chosen.
        const auto at = std::ranges::find(told.blocks, nearly_all.blocks[i]);
        if (at != told.blocks.end()) {
          EXPECT_EQ(told.masses[static_cast<std::size_t>(at - told.blocks.begin())],
                    nearly_all.masses[i]);
        }
      }
      EXPECT_GT(sum, 0.98);
      EXPECT_LT(sum, 1.0 + 1e-5);
    }
  }
}

}  // namespace
}  // namespace karez
