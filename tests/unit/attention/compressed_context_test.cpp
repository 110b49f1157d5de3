// Rows behind compressed context: tables that are shorter than the positions, with other pairs for
// each layer and KV head.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>

#include "support/attention_harness.h"

namespace karez {
namespace compressed_context_test {

using test::AttentionHarness;
using test::HarnessOptions;
using test::KeptPairs;
using test::largest_difference;
using test::RowRange;
using test::same_bits;

double tolerance(KvType type) { return type == KvType::kF32 ? 2e-6 : 4e-3; }

struct Backend {
  CpuLevel level;
  KvType type;
};

std::vector<Backend> backends() {
  std::vector<Backend> out;
  for (const CpuLevel level : supported_cpu_levels()) {
    for (const KvType type : {KvType::kF32, KvType::kBf16, KvType::kQ8_0}) {
      out.push_back({level, type});
    }
  }
  return out;
}

// Others for each layer and head, in no order.
KeptPairs some_of(int begin, int end, int count) {
  return [=](int layer, int kv_head) {
    std::vector<int> positions(static_cast<std::size_t>(end - begin));
    std::iota(positions.begin(), positions.end(), begin);
    std::shuffle(positions.begin(), positions.end(),
                 std::mt19937(static_cast<unsigned>(begin + 10 * layer + kv_head)));
    positions.resize(static_cast<std::size_t>(count));
    return positions;
  };
}

constexpr int kFirst = 64;    // of the first window
constexpr int kWindow = 512;  // positions
constexpr int kKept = 176;
constexpr int kGone = 2 * (kWindow - kKept);  // not a multiple of a chunk
constexpr int kTokens = kFirst + 2 * kWindow + 131;

// Written again from what is stored, in both kinds of sequence: so are their records.
std::vector<int> all_before_the_windows(int /*layer*/, int /*kv_head*/) {
  std::vector<int> positions(std::size_t{kFirst});
  std::iota(positions.begin(), positions.end(), 0);
  return positions;
}

class CompressedContext : public testing::TestWithParam<Backend> {
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
    return out;
  }
  static SparseOptions selecting(KeyIndexKind kind, int two_level_blocks = kTwoLevelBlocks) {
    SparseOptions sparse;
    sparse.token_budget = 160;
    sparse.recent_window = 48;
    sparse.block_index = kind;
    sparse.two_level_blocks = two_level_blocks;
    return sparse;
  }
  // kTokens tokens, of which two windows are compressed.
  static SequenceId compressed(AttentionHarness& harness, std::uint32_t content = 1) {
    const SequenceId sequence = harness.open(content);
    harness.fill(sequence, kTokens);
    harness.overwrite(sequence, 0, all_before_the_windows);
    for (int window = 0; window < 2; ++window) {
      const int begin = kFirst + window * kWindow;
      harness.compress(sequence, begin, begin + kWindow, some_of(begin, begin + kWindow, kKept));
    }
    return sequence;
  }
  // The same pairs in the same order in a sequence whose positions are the places of the other.
  static SequenceId plain(AttentionHarness& harness) {
    const SequenceId sequence = harness.open(1, kGone);
    harness.fill(sequence, kTokens - kGone);
    harness.overwrite(sequence, 0, all_before_the_windows);
    for (int window = 0; window < 2; ++window) {
      const int begin = kFirst + window * kWindow;
      harness.overwrite(sequence, kFirst + window * kKept, some_of(begin, begin + kWindow, kKept));
    }
    return sequence;
  }
};

INSTANTIATE_TEST_SUITE_P(All, CompressedContext, testing::ValuesIn(backends()),
                         [](const testing::TestParamInfo<Backend>& backend) {
                           std::string name = std::string(to_string(backend.param.level)) + "_" +
                                              std::string(to_string(backend.param.type));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(CompressedContext, DenseRowsAreThoseOfAPlainSequenceWithThePairsBitForBit) {
  for (const int num_rows : {1, 5, 40}) {
    AttentionHarness packed(options());
    AttentionHarness reference(options());
    const SequenceId a = compressed(packed);
    const SequenceId b = plain(reference);
    for (const int num_threads : {1, 7}) {  // the second step's rows see those of the first
      const std::vector<float> out = packed.run({{a, num_rows}}, num_threads);
      EXPECT_TRUE(same_bits(out, reference.run({{b, num_rows}}, 1))) << num_rows;
      EXPECT_LT(largest_difference(out, packed.expected({{a, num_rows}})),
                tolerance(GetParam().type));
      EXPECT_EQ(packed.planned_read_bytes(0), reference.planned_read_bytes(0));
    }
  }
}

TEST_P(CompressedContext, SparseRowsSelectAndAttendAsThoseOfAPlainSequenceBitForBit) {
  for (const KeyIndexKind kind :
       {KeyIndexKind::kR2, KeyIndexKind::kR3, KeyIndexKind::kMinMax, KeyIndexKind::kMean}) {
    for (const int two_level_blocks : {kTwoLevelBlocks, 20}) {
      HarnessOptions o = options();
      o.sparse = selecting(kind, two_level_blocks);
      AttentionHarness packed(o);
      AttentionHarness reference(o);
      const SequenceId a = compressed(packed);
      const SequenceId b = plain(reference);
      const std::vector<RowRange> ranges = {{a, 3, 0}};
      const std::vector<float> out = packed.run(ranges, 7);
      EXPECT_TRUE(same_bits(out, reference.run({{b, 3, 0}}, 2))) << to_string(kind);
      EXPECT_LT(largest_difference(out, packed.expected(ranges)), tolerance(o.type));
      ASSERT_EQ(packed.selections().size(), 2U * 3U * 2U);
      for (const auto& [key, blocks] : reference.selections()) {
        auto at = key;
        std::get<2>(at) += kGone;  // listeners hear of true positions
        EXPECT_EQ(packed.selections().at(at), blocks);
      }
      EXPECT_EQ(packed.attention().planned_index_bytes(1),
                reference.attention().planned_index_bytes(1));
    }
  }
}

TEST_P(CompressedContext, WindowsOfLayersStillHoldTruePositions) {
  HarnessOptions o = options();
  o.layer_windows = {0, 300, 0, 17};
  o.softcap = 20.0F;
  AttentionHarness harness(o);
  const SequenceId a = compressed(harness);
  const SequenceId other = harness.open(2);
  harness.fill(other, 300);
  for (const int num_rows : {1, 33}) {
    const std::vector<RowRange> ranges = {{other, 2}, {a, num_rows}};
    const std::vector<float> out = harness.run(ranges, 3);
    EXPECT_LT(largest_difference(out, harness.expected(ranges)), tolerance(o.type));
  }
}

TEST_P(CompressedContext, ContextIsWhatTheTableHoldsAndTheFirstSparsePositionIsTrue) {
  HarnessOptions o = options();
  o.sparse = selecting(KeyIndexKind::kR2);
  // The budget holds what the table has before the second row, which is far less than positions.
  o.sparse.token_budget = kTokens - kGone + 1;
  AttentionHarness harness(o);
  const SequenceId a = compressed(harness);
  harness.run({{a, 3, 0}}, 1);
  EXPECT_EQ(harness.selections().size(), 2U * 2U * 2U);
  o.sparse.token_budget = 160;
  AttentionHarness later(o);
  const SequenceId b = compressed(later);
  later.run({{b, 4, kTokens + 3}}, 1);
  ASSERT_EQ(later.selections().size(), 2U * 1U * 2U);
  EXPECT_EQ(std::get<2>(later.selections().begin()->first), kTokens + 3);
}

TEST_P(CompressedContext, ABudgetOfTheContextIsTheDensePathBitForBit) {
  HarnessOptions o = options();
  AttentionHarness dense(o);
  o.sparse = selecting(KeyIndexKind::kR3);
  o.sparse.token_budget = kTokens - kGone + 2;
  AttentionHarness sparse(o);
  const SequenceId a = compressed(dense);
  const SequenceId b = compressed(sparse);
  EXPECT_TRUE(same_bits(sparse.run({{b, 2, 0}}, 2), dense.run({{a, 2}}, 2)));
}

TEST_P(CompressedContext, RecallIsOfWhatTheTableHolds) {
  HarnessOptions o = options();
  o.sparse = selecting(KeyIndexKind::kR2);
  o.sparse.recall_stride = 1;
  AttentionHarness packed(o);
  AttentionHarness reference(o);
  const SequenceId a = compressed(packed);
  const SequenceId b = plain(reference);
  packed.run({{a, 1, 0}}, 1);
  reference.run({{b, 1, 0}}, 1);
  const std::vector<RecallSample> samples = packed.attention().take_recall();
  const std::vector<RecallSample> expected = reference.attention().take_recall();
  ASSERT_EQ(samples.size(), 2U * 6U);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    EXPECT_EQ(samples[i].mass, expected[i].mass);
    EXPECT_EQ(samples[i].position, kTokens);
  }
}

}  // namespace compressed_context_test
}  // namespace karez
