// Selection in two levels: which blocks stay, and that nothing but the row decides.
#include "attention/coarse_scan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "attention/row_selector.h"
#include "kv/block_layout.h"
#include "support/attention_harness.h"

namespace karez {
namespace {

using test::AttentionHarness;
using test::HarnessOptions;
using test::largest_difference;
using test::RowRange;
using test::same_bits;

SparseOptions two_levels(int token_budget, int from_blocks) {
  SparseOptions options;
  options.token_budget = token_budget;
  options.recent_window = 48;
  options.two_level_blocks = from_blocks;
  return options;
}

TEST(CoarseScan, AQuarterIsScannedWhereTwoLevelsBeginAndThenTheSquareRoot) {
  const SparseOptions options = two_levels(1024, 4096);
  const auto scanned_blocks = [&](int num_tokens) {
    const SelectionShape shape = selection_shape(options.rule(), num_tokens - 1);
    const SelectionShape scanned = scanned_shape(shape, options);
    EXPECT_EQ(scanned.num_best, shape.num_best);
    EXPECT_EQ(scanned.sink_blocks, shape.sink_blocks);
    EXPECT_EQ(scanned.num_blocks - scanned.recent_begin, shape.num_blocks - shape.recent_begin);
    return scanned.recent_begin - scanned.sink_blocks;
  };
  EXPECT_EQ(scanned_blocks(65536), 4096 - 1 - 3);  // one level
  EXPECT_EQ(scanned_blocks(65537), 1024);
  EXPECT_EQ(scanned_blocks(4 * 65536), 2048);
  EXPECT_EQ(scanned_blocks(16 * 65536), 4096);
}

TEST(CoarseScan, MoreIsScannedForALargeBudgetAndNeverMoreThanThereIs) {
  const SparseOptions options = two_levels(40000, 4096);
  const auto scanned = [&](int num_tokens) {
    return scanned_shape(selection_shape(options.rule(), num_tokens - 1), options);
  };
  EXPECT_EQ(scanned(70000).num_blocks, 4375);
  EXPECT_EQ(scanned(160000).recent_begin, 1 + 2 * (2500 - 4));
}

TEST(CoarseScan, SummariesOfBlocksAreScannedInOneLevel) {
  SparseOptions options = two_levels(1024, 4096);
  options.block_index = KeyIndexKind::kMinMax;
  EXPECT_EQ(scanned_shape(selection_shape(options.rule(), 99999), options).num_blocks, 6250);
}

class TwoLevels : public testing::TestWithParam<CpuLevel> {
 protected:
  static HarnessOptions options(const SparseOptions& sparse) {
    HarnessOptions out;
    out.cpu_level = GetParam();
    out.num_heads = 6;
    out.num_kv_heads = 2;
    out.head_dim = 32;
    out.max_threads = 8;
    out.query_range = 6.0F;
    out.sparse = sparse;
    return out;
  }
};

INSTANTIATE_TEST_SUITE_P(All, TwoLevels, testing::ValuesIn(supported_cpu_levels()),
                         [](const testing::TestParamInfo<CpuLevel>& level) {
                           std::string name(to_string(level.param));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(TwoLevels, WithAllBlocksAsCandidatesSelectTheSameAsOne) {
  std::vector<std::vector<float>> out;
  for (const int from_blocks : {1000, 60}) {
    AttentionHarness harness(options(two_levels(900, from_blocks)));
    const SequenceId sequence = harness.open(1);
    harness.fill(sequence, 1500);
    out.push_back(harness.run({{sequence, 3, 0}}, 2));
    EXPECT_EQ(harness.selections().size(), 6U);
  }
  EXPECT_TRUE(same_bits(out[0], out[1]));
}

TEST_P(TwoLevels, AgreeWithTheReferenceOverWhatTheySelected) {
  for (const KeyIndexKind kind : {KeyIndexKind::kR2, KeyIndexKind::kR3}) {
    for (const SelectPer per : {SelectPer::kHead, SelectPer::kLayer}) {
      for (const int group : {1, 3, 7}) {
        HarnessOptions o = options(two_levels(160, 64));
        o.sparse.block_index = kind;
        o.sparse.select_per = per;
        o.num_heads = 2 * group;
        AttentionHarness harness(o);
        const SequenceId sequence = harness.open(1);
        harness.fill(sequence, 1100);
        const std::vector<RowRange> ranges = {{sequence, 3, 0}};
        const std::vector<float> out = harness.run(ranges, 2);
        ASSERT_EQ(harness.selections().size(), 3U * 2U);
        EXPECT_LT(largest_difference(out, harness.expected(ranges)), 2e-6);
        for (const auto& [key, blocks] : harness.selections()) {
          EXPECT_EQ(blocks.size(), 10U);
          EXPECT_TRUE(std::is_sorted(blocks.begin(), blocks.end()));
          EXPECT_EQ(blocks.front(), 0);
          EXPECT_EQ(blocks.back(), std::get<2>(key) / kBlockSize);
          if (per == SelectPer::kLayer) {
            auto first_head = key;
            std::get<3>(first_head) = 0;
            EXPECT_EQ(blocks, harness.selections().at(first_head));
          }
        }
      }
    }
  }
}

TEST_P(TwoLevels, GiveTheSameBitsForAnyThreadsCompanyAndChunking) {
  const HarnessOptions o = options(two_levels(160, 30));
  const auto fed = [&](const std::vector<int>& chunks, int num_threads, bool in_company) {
    AttentionHarness harness(o);
    const SequenceId other = harness.open(2);
    harness.fill(other, in_company ? 900 : 1);
    const SequenceId sequence = harness.open(1);
    harness.fill(sequence, 470);
    std::vector<float> out;
    for (const int rows : chunks) {
      std::vector<RowRange> ranges = {{sequence, rows, 0}};
      if (in_company) {
        ranges.push_back({other, 2, 0});
      }
      const std::vector<float> part = harness.run(ranges, num_threads);
      out.insert(out.end(), part.begin(),
                 part.begin() + static_cast<std::ptrdiff_t>(rows) * 6 * o.head_dim);
    }
    return out;
  };
  // Rows 470 to 529: two levels begin among them.
  const std::vector<float> expected = fed({60}, 1, false);
  EXPECT_TRUE(same_bits(fed({60}, 8, false), expected));
  EXPECT_TRUE(same_bits(fed({20, 1, 1, 30, 8}, 3, true), expected));
}

TEST_P(TwoLevels, AForkThatCopiesItsLastBlockSelectsAsIfItWereAlone) {
  const HarnessOptions o = options(two_levels(160, 30));
  AttentionHarness shared(o);
  AttentionHarness apart(o);
  const SequenceId parent = shared.open(1);
  shared.fill(parent, 605);
  const SequenceId child = shared.fork(parent, 605);
  shared.run({{parent, 40, 605}}, 1);
  const SequenceId lonely = apart.open(1);
  apart.fill(lonely, 605);
  for (int step = 0; step < 80; ++step) {
    ASSERT_TRUE(same_bits(shared.run({{child, 1, 605}}, 2), apart.run({{lonely, 1, 605}}, 1)));
  }
}

// A context in which neighbours say similar things: the keys of 64 tokens stand around a theme of
// their own, and the query asks for some of the themes.
TEST_P(TwoLevels, FindNearlyAllThatOneLevelFindsWhereNeighboursAreAlike) {
  constexpr int kDim = 64;
  constexpr int kBlocks = 2000;
  constexpr int kBlocksOfTheme = 4;
  KVCacheSpec spec;
  spec.num_layers = 1;
  spec.num_kv_heads = 1;
  spec.head_dim = kDim;
  const BlockIdRange range{0, kBlocks};
  const KeyIndex index =
      std::move(KeyIndex::create(spec, KeyIndexKind::kR2, std::span(&range, 1), {}, 500).value());
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  std::vector<float> keys(std::size_t{kBlockSize} * kDim);
  std::vector<float> theme(kDim);
  std::vector<float> query(std::size_t{3} * kDim, 0.0F);
  std::vector<std::byte> slot(BlockLayout::of(KvType::kF32, kDim).slot_bytes);
  std::vector<BlockId> table;
  for (std::uint32_t b = 0; b < kBlocks; ++b) {
    table.emplace_back(b);
    if (b % kBlocksOfTheme == 0) {
      std::generate(theme.begin(), theme.end(), [&] { return normal(random); });
    }
    for (std::size_t i = 0; i < keys.size(); ++i) {
      keys[i] = theme[i % kDim] + normal(random);
    }
    for (std::size_t i = 0; b % 100 == 0 && i < query.size(); ++i) {
      query[i] += theme[i % kDim];
    }
    const TokenRows rows{keys.data(), kDim};
    store_in_block(KvType::kF32, kDim, slot.data(), 0, kBlockSize, rows, rows);
    index_tokens(KeyIndexKind::kR2, kDim, index.view(0).record(0, table.back()), 0, kBlockSize,
                 rows, nullptr);
    index_mean(kDim, index.view(0).coarse_record(0, table.back()), KvType::kF32, slot.data(),
               nullptr);
  }
  SequenceRows rows;
  rows.tables = {table};
  rows.first_position = kBlocks * kBlockSize - 1;
  rows.num_rows = 1;
  rows.first_sparse_position = 0;
  std::vector<std::vector<std::int32_t>> lists;
  for (const int from_blocks : {kBlocks, 500}) {
    RowSelector selector({1, 1, 3, kDim, 0.125F * 1.4427F, 1, GetParam()},
                         two_levels(1024, from_blocks));
    selector.plan(std::span(&rows, 1), 0);
    ASSERT_TRUE(selector.run(0, index.view(0), {query.data(), query.size()}, 0));
    const auto list = selector.list(0, 0);
    lists.emplace_back(list.begin(), list.end());
  }
  std::vector<std::int32_t> both;
  std::set_intersection(lists[0].begin(), lists[0].end(), lists[1].begin(), lists[1].end(),
                        std::back_inserter(both));
  EXPECT_EQ(lists[0].size(), 64U);
  EXPECT_GE(both.size(), 58U);  // a quarter chosen at random would have 19
}

// Archived pages of one block are entries of their own and share its id.
TEST_P(TwoLevels, SelectAmongPagesOfFewIdsAsAmongBlocksOfTheSameKeys) {
  constexpr int kDim = 64;
  constexpr int kPages = 3;
  constexpr int kFirstPage = 2;
  constexpr int kEndPage = kFirstPage + 40 * kPages;
  constexpr int kEntries = kEndPage + 8;
  constexpr int kTwoLevelFrom = 100;
  KVCacheSpec spec;
  spec.num_layers = 1;
  spec.num_kv_heads = 1;
  spec.head_dim = kDim;
  const BlockIdRange few{0, 50};
  const BlockIdRange many{0, kEntries};
  const KeyIndex packed = std::move(
      KeyIndex::create(spec, KeyIndexKind::kR2, std::span(&few, 1), {}, kTwoLevelFrom, kPages)
          .value());
  const KeyIndex plain = std::move(
      KeyIndex::create(spec, KeyIndexKind::kR2, std::span(&many, 1), {}, kTwoLevelFrom).value());
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  std::vector<float> keys(std::size_t{kBlockSize} * kDim);
  std::vector<float> query(std::size_t{3} * kDim);
  std::generate(query.begin(), query.end(), [&] { return normal(random); });
  std::vector<BlockId> packed_table;
  std::vector<BlockId> plain_table;
  std::vector<std::uint8_t> pages;
  std::uint32_t next_id = 0;
  for (int entry = 0; entry < kEntries; ++entry) {
    std::generate(keys.begin(), keys.end(), [&] { return normal(random); });
    const KeyIndexView of_plain = plain.view(0);
    plain_table.emplace_back(static_cast<std::uint32_t>(entry));
    index_whole_block(KeyIndexKind::kR2, kDim, of_plain.record(0, plain_table.back()),
                      of_plain.coarse_record(0, plain_table.back()), keys.data(), nullptr);
    const KeyIndexView of_packed = packed.view(0);
    if (entry < kFirstPage || entry >= kEndPage) {
      packed_table.emplace_back(next_id++);
      index_whole_block(KeyIndexKind::kR2, kDim, of_packed.record(0, packed_table.back()),
                        of_packed.coarse_record(0, packed_table.back()), keys.data(), nullptr);
      continue;
    }
    const int page = (entry - kFirstPage) % kPages;
    pages.push_back(static_cast<std::uint8_t>(page));
    packed_table.emplace_back(next_id);
    next_id += page == kPages - 1 ? 1 : 0;
    index_whole_block(KeyIndexKind::kR2, kDim, of_packed.page_record(0, packed_table.back(), page),
                      of_packed.coarse_page_record(0, packed_table.back(), page), keys.data(),
                      nullptr);
  }
  ASSERT_EQ(next_id, few.count);
  std::vector<std::vector<std::int32_t>> lists;
  for (const bool is_packed : {false, true}) {
    SequenceRows rows;
    rows.tables = {is_packed ? packed_table : plain_table};
    rows.first_position = kEntries * kBlockSize - 1;
    rows.num_rows = 1;
    rows.first_sparse_position = 0;
    if (is_packed) {
      rows.archived = {kFirstPage, kEndPage, pages};
    }
    RowSelector selector({1, 1, 3, kDim, 0.125F * 1.4427F, 1, GetParam()},
                         two_levels(256, kTwoLevelFrom));
    selector.plan(std::span(&rows, 1), 0);
    const KeyIndex& index = is_packed ? packed : plain;
    ASSERT_TRUE(selector.run(0, index.view(0), {query.data(), query.size()}, 0));
    const auto list = selector.list(0, 0);
    lists.emplace_back(list.begin(), list.end());
  }
  EXPECT_EQ(lists[0].size(), 16U);
  EXPECT_EQ(lists[1], lists[0]);
}

}  // namespace
}  // namespace karez
