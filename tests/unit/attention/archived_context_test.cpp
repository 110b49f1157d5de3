// Rows that attend to archived pages beside blocks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "attention/archive_page.h"
#include "support/attention_harness.h"

namespace karez {
namespace {

using test::AttentionHarness;
using test::HarnessOptions;
using test::KeptPairs;
using test::largest_difference;
using test::RowRange;
using test::same_bits;

// Pages are attended to with rotated queries in bf16 whatever the type; the reference has them as
// they were.
constexpr double kTolerance = 8e-3;

struct Backend {
  CpuLevel level;
  KvType type;
};

std::vector<Backend> backends(const std::vector<KvType>& types = {KvType::kF32, KvType::kBf16,
                                                                  KvType::kQ8_0}) {
  std::vector<Backend> out;
  for (const CpuLevel level : supported_cpu_levels()) {
    for (const KvType type : types) {
      out.push_back({level, type});
    }
  }
  return out;
}

std::string name_of(const testing::TestParamInfo<Backend>& backend) {
  std::string name = std::string(to_string(backend.param.level)) + "_" +
                     std::string(to_string(backend.param.type));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

// Positions [from, to) of a window's in an order of their own for each layer and head.
KeptPairs part_of(int begin, int end, int from, int to) {
  return [=](int layer, int kv_head) {
    std::vector<int> positions(static_cast<std::size_t>(end - begin));
    std::iota(positions.begin(), positions.end(), begin);
    std::shuffle(positions.begin(), positions.end(),
                 std::mt19937(static_cast<unsigned>(begin + 10 * layer + kv_head)));
    return std::vector<int>(positions.begin() + from, positions.begin() + to);
  };
}

constexpr int kFirst = 64;      // of the first window
constexpr int kWindow = 384;    // positions
constexpr int kKept = 80;       // of these
constexpr int kArchived = 208;  // 13 pages, so that blocks are not full; the rest is dropped
constexpr int kWindows = 3;
constexpr int kGone = kWindows * (kWindow - kKept - kArchived);
constexpr int kTokens = kFirst + kWindows * kWindow + 71;

class ArchivedContext : public testing::TestWithParam<Backend> {
 protected:
  static HarnessOptions options() {
    HarnessOptions out;
    out.type = GetParam().type;
    out.cpu_level = GetParam().level;
    out.num_heads = 6;
    out.num_kv_heads = 2;
    out.head_dim = 48;
    out.layer_windows = {0, 0};
    out.max_threads = 8;
    out.query_range = 4.0F;
    out.has_pages = true;
    return out;
  }
  static SparseOptions selecting(KeyIndexKind kind, int two_level_blocks = kTwoLevelBlocks) {
    SparseOptions sparse;
    sparse.token_budget = 224;
    sparse.recent_window = 48;
    sparse.block_index = kind;
    sparse.two_level_blocks = two_level_blocks;
    return sparse;
  }
  static SequenceId compressed(AttentionHarness& harness, std::uint32_t content = 1) {
    const SequenceId sequence = harness.open(content);
    harness.fill(sequence, kTokens);
    for (int window = 0; window < kWindows; ++window) {
      const int begin = kFirst + window * kWindow;
      const int end = begin + kWindow;
      harness.compress(sequence, begin, end, part_of(begin, end, 0, kKept),
                       part_of(begin, end, kKept, kKept + kArchived));
    }
    return sequence;
  }
  // The same pairs in blocks of their own, those of pages as they are decoded.
  static SequenceId plain(AttentionHarness& harness) {
    const SequenceId sequence = harness.open(1, kGone);
    harness.fill(sequence, kTokens - kGone);
    harness.overwrite(sequence, 0, part_of_identity);
    for (int window = 0; window < kWindows; ++window) {
      const int begin = kFirst + window * kWindow;
      const int end = begin + kWindow;
      harness.overwrite(sequence, kFirst + window * kKept, part_of(begin, end, 0, kKept));
      harness.overwrite(sequence, kFirst + kWindows * kKept + window * kArchived,
                        part_of(begin, end, kKept, kKept + kArchived), true);
    }
    return sequence;
  }
  static std::vector<int> part_of_identity(int /*layer*/, int /*kv_head*/) {
    std::vector<int> positions(std::size_t{kFirst});
    std::iota(positions.begin(), positions.end(), 0);
    return positions;
  }
};

INSTANTIATE_TEST_SUITE_P(All, ArchivedContext, testing::ValuesIn(backends()), name_of);

TEST_P(ArchivedContext, DenseRowsAgreeWithTheReferenceOverDecodedPairs) {
  for (const auto& [num_heads, num_kv_heads, head_dim, num_rows, softcap] :
       std::vector<std::tuple<int, int, int, int, float>>{{6, 2, 48, 1, 0.0F},
                                                          {1, 1, 64, 1, 0.0F},
                                                          {9, 3, 64, 5, 0.0F},
                                                          {7, 1, 80, 40, 9.0F},
                                                          {8, 1, 128, 3, 0.0F},
                                                          {2, 1, 256, 1, 0.0F},
                                                          {4, 4, 16, 33, 0.0F}}) {
    HarnessOptions o = options();
    o.num_heads = num_heads;
    o.num_kv_heads = num_kv_heads;
    o.head_dim = head_dim;
    o.softcap = softcap;
    o.layer_windows = {0, 200};
    AttentionHarness harness(o);
    const SequenceId a = compressed(harness);
    const std::vector<RowRange> ranges = {{a, num_rows}};
    const std::vector<float> out = harness.run(ranges, 2);
    EXPECT_LT(largest_difference(out, harness.expected(ranges)), kTolerance)
        << num_heads << "/" << num_kv_heads << " " << head_dim << " " << num_rows;
  }
}

TEST_P(ArchivedContext, SparseRowsAgreeWithTheReferenceOverWhatTheySelected) {
  for (const KeyIndexKind kind : {KeyIndexKind::kR2, KeyIndexKind::kMean}) {
    HarnessOptions o = options();
    o.sparse = selecting(kind);
    AttentionHarness harness(o);
    const SequenceId a = compressed(harness);
    const std::vector<RowRange> ranges = {{a, 3, 0}};
    const std::vector<float> out = harness.run(ranges, 2);
    ASSERT_EQ(harness.selections().size(), 2U * 3U * 2U);
    EXPECT_LT(largest_difference(out, harness.expected(ranges)), kTolerance);
    constexpr int kFirstPage = (kFirst + kWindows * kKept) / kBlockSize;
    constexpr int kPages = kWindows * kArchived / kBlockSize;
    std::int64_t num_pages = 0;
    std::int64_t num_blocks = 0;
    for (const auto& [key, entries] : harness.selections()) {
      if (std::get<0>(key) == 1) {
        for (const int entry : entries) {
          const bool is_page = entry >= kFirstPage && entry < kFirstPage + kPages;
          (is_page ? num_pages : num_blocks) += 1;
        }
      }
    }
    EXPECT_GT(num_pages, 0);
    EXPECT_EQ(harness.planned_read_bytes(1),
              num_blocks * static_cast<std::int64_t>(harness.kv().spec().slot_bytes()) +
                  num_pages * static_cast<std::int64_t>(ArchiveLayout::of(o.head_dim).page_bytes));
  }
}

TEST_P(ArchivedContext, GivesTheSameBitsForAnyThreadsChunkingAndCompany) {
  for (const bool selects : {false, true}) {
    HarnessOptions o = options();
    if (selects) {
      o.sparse = selecting(KeyIndexKind::kR2);
      o.sparse.token_budget = 600;  // several chunks of pages
    }
    AttentionHarness harness(o);
    const SequenceId a = compressed(harness);
    const std::vector<float> whole = harness.run({{a, 21, 0}}, 1);  // 21 rows: not split
    const auto row_floats = static_cast<std::size_t>(o.num_heads * o.head_dim);
    for (const int num_threads : {1, 8}) {
      AttentionHarness again(o);
      const SequenceId other = again.open(2);
      const SequenceId b = compressed(again);
      const SequenceId third = compressed(again, 3);
      again.fill(other, 700);
      int done = 0;
      for (const int rows : {1, 2, 17, 1}) {
        const std::vector<float> out =
            again.run({{other, 2, 0}, {b, rows, 0}, {third, 1, 0}}, num_threads);
        for (const std::size_t layer : {0U, 1U}) {
          const auto at = [&](const std::vector<float>& all, std::size_t num_rows,
                              std::size_t first) {
            const auto begin =
                all.begin() + static_cast<std::ptrdiff_t>((layer * num_rows + first) * row_floats);
            return std::vector<float>(
                begin,
                begin + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(rows) * row_floats));
          };
          EXPECT_TRUE(same_bits(at(out, static_cast<std::size_t>(rows) + 3, 2),
                                at(whole, 21, static_cast<std::size_t>(done))))
              << num_threads << " " << rows;
        }
        done += rows;
      }
    }
  }
}

TEST_P(ArchivedContext, ABudgetOfTheContextIsTheDensePathBitForBit) {
  HarnessOptions o = options();
  AttentionHarness dense(o);
  o.sparse = selecting(KeyIndexKind::kR3);
  o.sparse.token_budget = kTokens - kGone + 2;
  AttentionHarness sparse(o);
  const SequenceId a = compressed(dense);
  const SequenceId b = compressed(sparse);
  EXPECT_TRUE(same_bits(sparse.run({{b, 2, 0}}, 2), dense.run({{a, 2}}, 2)));
}

TEST_P(ArchivedContext, ListsThatLoseAllPagesOrAllOthersAreAttendedToAsTheyAre) {
  constexpr int kFirstPage = (kFirst + kWindows * kKept) / kBlockSize;
  constexpr int kPages = kWindows * kArchived / kBlockSize;
  for (const bool keeps_pages : {false, true}) {
    std::vector<float> first;
    for (const int num_threads : {1, 8}) {
      HarnessOptions o = options();
      o.sparse = selecting(KeyIndexKind::kR2);
      o.sparse.token_budget = 600;
      AttentionHarness harness(o);
      harness.set_listener([&](int, std::span<SelectedBlocks> selected) {
        for (SelectedBlocks& list : selected) {
          const std::int32_t own = list.blocks.back();
          const auto dropped = std::ranges::remove_if(list.blocks, [&](std::int32_t entry) {
            const bool is_page = entry >= kFirstPage && entry < kFirstPage + kPages;
            return entry != own && is_page != keeps_pages;
          });
          list.blocks = {list.blocks.begin(), dropped.begin()};
        }
      });
      const SequenceId a = compressed(harness);
      const std::vector<RowRange> ranges = {{a, 2, 0}};
      const std::vector<float> out = harness.run(ranges, num_threads);
      EXPECT_LT(largest_difference(out, harness.expected(ranges)), kTolerance);
      if (first.empty()) {
        first = out;
      }
      EXPECT_TRUE(same_bits(out, first));
    }
  }
}

// In f32, where decoded keys are not rounded once more in the blocks that they are compared with.
class ArchivedSelection : public ArchivedContext {};

INSTANTIATE_TEST_SUITE_P(All, ArchivedSelection, testing::ValuesIn(backends({KvType::kF32})),
                         name_of);

TEST_P(ArchivedSelection, PagesAreSelectedLikeBlocksOfTheirDecodedKeys) {
  for (const KeyIndexKind kind :
       {KeyIndexKind::kR2, KeyIndexKind::kR3, KeyIndexKind::kMinMax, KeyIndexKind::kMean}) {
    for (const int two_level_blocks : {kTwoLevelBlocks, 20}) {
      HarnessOptions o = options();
      o.sparse = selecting(kind, two_level_blocks);
      o.sparse.recall_stride = 1;
      AttentionHarness packed(o);
      AttentionHarness reference(o);
      const SequenceId a = compressed(packed);
      const SequenceId b = plain(reference);
      const std::vector<float> out = packed.run({{a, 2, 0}}, 3);
      const std::vector<float> expected = reference.run({{b, 2, 0}}, 3);
      EXPECT_LT(largest_difference(out, expected), kTolerance);
      ASSERT_EQ(packed.selections().size(), 2U * 2U * 2U);
      for (const auto& [key, blocks] : reference.selections()) {
        auto at = key;
        std::get<2>(at) += kGone;
        EXPECT_EQ(packed.selections().at(at), blocks) << to_string(kind);
      }
      const auto mean = [](AttentionHarness& harness) {
        return summarise_recall(harness.attention().take_recall(), 2)[1].mean;
      };
      EXPECT_NEAR(mean(packed), mean(reference), 1e-6);
    }
  }
}

}  // namespace
}  // namespace karez
