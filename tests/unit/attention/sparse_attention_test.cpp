// Sparse rows: what they select, what they then compute, and that nothing else matters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "support/attention_harness.h"

namespace karez {
namespace sparse_attention_test {

using test::AttentionHarness;
using test::HarnessOptions;
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

class SparseAttention : public testing::TestWithParam<Backend> {
 protected:
  HarnessOptions options(int token_budget) const {
    HarnessOptions out;
    out.type = GetParam().type;
    out.cpu_level = GetParam().level;
    out.num_heads = 6;
    out.num_kv_heads = 2;
    out.head_dim = 32;
    out.max_threads = 8;
    out.query_range = 3.0F;
    out.sparse.token_budget = token_budget;
    out.sparse.recent_window = 48;
    out.sparse.sink_tokens = 16;
    return out;
  }
};

INSTANTIATE_TEST_SUITE_P(All, SparseAttention, testing::ValuesIn(backends()),
                         [](const testing::TestParamInfo<Backend>& backend) {
                           std::string name = std::string(to_string(backend.param.level)) + "_" +
                                              std::string(to_string(backend.param.type));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(SparseAttention, ABudgetOfTheContextIsTheDensePathBitForBit) {
  for (const int head_dim : {64, 80, 128, 256}) {
    for (const int group : {1, 3, 4, 7, 8}) {
      HarnessOptions sparse = options(290);
      sparse.num_heads = group;
      sparse.num_kv_heads = 1;
      sparse.head_dim = head_dim;
      sparse.layer_windows = {0, 40};
      HarnessOptions dense = sparse;
      dense.sparse = {};
      std::vector<std::vector<float>> out;
      for (const HarnessOptions& o : {dense, sparse}) {
        AttentionHarness harness(o);
        const SequenceId sequence = harness.open(1);
        harness.fill(sequence, 287);
        out.push_back(harness.run({{sequence, 3, 0}}, 2));
        EXPECT_TRUE(harness.selections().empty());
      }
      EXPECT_TRUE(same_bits(out[0], out[1])) << head_dim << " " << group;
    }
  }
}

TEST_P(SparseAttention, AgreesWithTheReferenceOverWhatItSelected) {
  for (const KeyIndexKind kind :
       {KeyIndexKind::kR2, KeyIndexKind::kR3, KeyIndexKind::kMinMax, KeyIndexKind::kMean}) {
    for (const SelectPer per : {SelectPer::kHead, SelectPer::kLayer}) {
      HarnessOptions o = options(160);
      o.sparse.block_index = kind;
      o.sparse.select_per = per;
      o.head_dim = 80;
      o.softcap = kind == KeyIndexKind::kR2 ? 5.0F : 0.0F;
      AttentionHarness harness(o);
      const SequenceId sequence = harness.open(1);
      harness.fill(sequence, 1100);
      const std::vector<RowRange> ranges = {{sequence, 3, 0}};
      const std::vector<float> out = harness.run(ranges, 2);
      ASSERT_EQ(harness.selections().size(), 3U * 2U);
      EXPECT_LT(largest_difference(out, harness.expected(ranges)), tolerance(o.type))
          << to_string(kind);
      for (const auto& [key, blocks] : harness.selections()) {
        const int position = std::get<2>(key);
        EXPECT_EQ(blocks.size(), 10U);
        EXPECT_TRUE(std::is_sorted(blocks.begin(), blocks.end()));
        EXPECT_EQ(blocks.front(), 0);
        EXPECT_EQ(blocks.back(), position / kBlockSize);
        EXPECT_THAT(blocks, testing::Contains((position - 47) / kBlockSize));
        if (per == SelectPer::kLayer) {
          auto first_head = key;
          std::get<3>(first_head) = 0;
          EXPECT_EQ(blocks, harness.selections().at(first_head));
        }
      }
    }
  }
}

TEST_P(SparseAttention, GivesTheSameBitsForAnyNumberOfThreads) {
  for (const SelectPer per : {SelectPer::kHead, SelectPer::kLayer}) {
    std::vector<float> first;
    for (const int num_threads : {1, 2, 3, 8}) {
      HarnessOptions o = options(320);
      o.sparse.select_per = per;
      o.layer_windows = {0, 0};
      AttentionHarness harness(o);
      const SequenceId sequence = harness.open(1);
      harness.fill(sequence, 2300);
      const std::vector<float> out = harness.run({{sequence, 2, 0}}, num_threads);
      if (first.empty()) {
        first = out;
      }
      EXPECT_TRUE(same_bits(out, first)) << num_threads;
    }
  }
}

TEST_P(SparseAttention, GivesTheSameBitsAloneAndInAnyCompany) {
  const HarnessOptions o = options(160);
  AttentionHarness alone(o);
  AttentionHarness crowd(o);
  const SequenceId lonely = alone.open(1);
  alone.fill(lonely, 500);
  const SequenceId first = crowd.open(2);
  const SequenceId member = crowd.open(1);
  const SequenceId prompt = crowd.open(3);
  crowd.fill(first, 1900);
  crowd.fill(member, 500);
  for (const int rows : {1, 4, 1}) {
    const std::vector<float> expected = alone.run({{lonely, rows, 500}}, 1);
    const std::vector<float> all =
        crowd.run({{first, 1, 100}, {member, rows, 500}, {prompt, 70}}, 3);
    const auto row_floats = std::ptrdiff_t{6} * o.head_dim;
    EXPECT_TRUE(same_bits(
        std::vector<float>(all.begin() + row_floats, all.begin() + row_floats * (1 + rows)),
        expected));
  }
}

TEST_P(SparseAttention, GivesTheSameBitsForAnyChunkingOfTheRows) {
  const auto fed = [this](const std::vector<int>& chunks) {
    AttentionHarness harness(options(160));
    const SequenceId sequence = harness.open(1);
    std::vector<float> out;
    for (const int rows : chunks) {
      const std::vector<float> part = harness.run({{sequence, rows, 400}}, 2);
      out.insert(out.end(), part.begin(), part.end());
    }
    return out;
  };
  const std::vector<float> whole = fed({430});
  EXPECT_TRUE(same_bits(fed({200, 200, 30}), whole));
  EXPECT_TRUE(same_bits(fed({390, 20, 1, 1, 1, 17}), whole));
}

TEST_P(SparseAttention, TheIndexOfABlockIsAFunctionOfItsBytes) {
  for (const KeyIndexKind kind : {KeyIndexKind::kR2, KeyIndexKind::kR3, KeyIndexKind::kMinMax}) {
    HarnessOptions o = options(160);
    o.sparse.block_index = kind;
    AttentionHarness harness(o);
    const SequenceId sequence = harness.open(1);
    for (const int rows : {40, 1, 1, 6, 130}) {
      harness.fill(sequence, rows);
    }
    EXPECT_TRUE(harness.index_follows_from_slots(sequence)) << to_string(kind);
  }
}

TEST_P(SparseAttention, RowsBeforeTheFirstSparsePositionAreDense) {
  const HarnessOptions o = options(160);
  HarnessOptions dense = o;
  dense.sparse = {};
  AttentionHarness mixed(o);
  AttentionHarness reference(dense);
  const SequenceId a = mixed.open(1);
  const SequenceId b = reference.open(1);
  mixed.fill(a, 300);
  reference.fill(b, 300);
  const std::vector<float> out = mixed.run({{a, 20, 310}}, 2);
  const std::vector<float> expected = reference.run({{b, 20}}, 2);
  const auto dense_floats = std::ptrdiff_t{10} * 6 * o.head_dim;
  EXPECT_TRUE(same_bits({out.begin(), out.begin() + dense_floats},
                        {expected.begin(), expected.begin() + dense_floats}));
  EXPECT_EQ(mixed.selections().size(), 10U * 2U);
}

TEST_P(SparseAttention, AForkThatCopiesItsLastBlockSelectsAsIfItWereAlone) {
  const HarnessOptions o = options(160);
  AttentionHarness shared(o);
  AttentionHarness apart(o);
  const SequenceId parent = shared.open(1);
  shared.fill(parent, 605);
  const SequenceId child = shared.fork(parent, 605);
  shared.run({{parent, 7, 605}}, 1);
  const SequenceId lonely = apart.open(1);
  apart.fill(lonely, 605);
  for (int step = 0; step < 20; ++step) {
    ASSERT_TRUE(same_bits(shared.run({{child, 1, 605}}, 2), apart.run({{lonely, 1, 605}}, 1)));
  }
}

TEST_P(SparseAttention, RecordsOfAnEarlierOwnerOfTheBlocksDoNotShow) {
  HarnessOptions o = options(160);
  o.max_tokens = 16;
  const auto result = [&o](bool with_earlier_owner) {
    AttentionHarness harness(o);
    if (with_earlier_owner) {
      const SequenceId earlier = harness.open(AttentionHarness::kInfiniteContent);
      harness.fill(earlier, 1000);
      harness.close(earlier);
    }
    const SequenceId sequence = harness.open(1);
    harness.fill(sequence, 700);
    return harness.run({{sequence, 1, 0}}, 1);
  };
  EXPECT_TRUE(same_bits(result(true), result(false)));
}

TEST(SparseAttentionLayers, WindowsAndDenseLayersSelectNothingAndTheListenerHearsOfAll) {
  HarnessOptions o;
  o.num_heads = 2;
  o.num_kv_heads = 2;
  o.head_dim = 32;
  o.layer_windows = {0, 64, 0, 0};
  o.max_threads = 3;
  o.sparse.token_budget = 64;
  o.sparse.recent_window = 16;
  o.sparse.dense_layers = 2;
  AttentionHarness harness(o);
  const SequenceId sequence = harness.open(1);
  harness.fill(sequence, 400);
  const std::vector<RowRange> ranges = {{sequence, 1, 0}};
  const std::vector<float> out = harness.run(ranges, 3);
  EXPECT_EQ(harness.listener_calls(), 4);
  for (const auto& [key, blocks] : harness.selections()) {
    EXPECT_GE(std::get<0>(key), 2);
  }
  EXPECT_EQ(harness.selections().size(), 2U * 2U);
  EXPECT_LT(largest_difference(out, harness.expected(ranges)), 2e-6);
  const auto slot = static_cast<std::int64_t>(harness.kv().spec().slot_bytes());
  EXPECT_EQ(harness.planned_read_bytes(0), slot * 2 * 26);
  EXPECT_EQ(harness.planned_read_bytes(2), slot * 2 * 4);
  EXPECT_EQ(harness.attention().planned_index_bytes(0), 0);
  EXPECT_EQ(harness.attention().planned_index_bytes(3), 2 * 26 * (128 + 32));
}

TEST(SparseAttentionLayers, RecallIsMeasuredForEveryRowLayerAndHeadWhenAsked) {
  HarnessOptions o;
  o.num_heads = 4;
  o.num_kv_heads = 2;
  o.head_dim = 32;
  o.layer_windows = {0, 0};
  o.max_threads = 2;
  o.query_range = 8.0F;
  o.sparse.token_budget = 128;
  o.sparse.recent_window = 16;
  o.sparse.recall_stride = 1;
  AttentionHarness harness(o);
  const SequenceId sequence = harness.open(1);
  harness.fill(sequence, 600);
  harness.run({{sequence, 3, 0}}, 2);
  const std::vector<RecallSample> samples = harness.attention().take_recall();
  EXPECT_EQ(samples.size(), 3U * 2U * 4U);
  for (const RecallSample& sample : samples) {
    EXPECT_GT(sample.mass, 0.1F);
    EXPECT_LT(sample.mass, 1.0F);
  }
  EXPECT_TRUE(harness.attention().take_recall().empty());
}

TEST(SparseAttentionLayers, TheIndexFindsTheBlocksWithTheMass) {
  // With sharp queries, what r2 picks holds far more of the true mass than the most recent blocks,
  // and r3 a little more than r2.
  const auto mean_recall = [](KeyIndexKind kind, int recent_window) {
    HarnessOptions o;
    o.num_heads = 3;
    o.num_kv_heads = 1;
    o.max_threads = 2;
    o.query_range = 12.0F;
    o.sparse.token_budget = 256;
    o.sparse.recent_window = recent_window;
    o.sparse.block_index = kind;
    o.sparse.recall_stride = 1;
    AttentionHarness harness(o);
    const SequenceId sequence = harness.open(1);
    harness.fill(sequence, 2000);
    harness.run({{sequence, 16, 0}}, 2);
    return summarise_recall(harness.attention().take_recall(), 1)[0].mean;
  };
  const double r2 = mean_recall(KeyIndexKind::kR2, 64);
  EXPECT_GT(r2, 0.5);
  EXPECT_GT(mean_recall(KeyIndexKind::kR3, 64), r2 - 0.02);
  EXPECT_LT(mean_recall(KeyIndexKind::kR2, 256), 0.5 * r2);
}

TEST(SparseAttentionLayers, CreateNamesTheSparseOptionThatIsWrong) {
  KVCacheSpec spec;
  spec.num_layers = 1;
  spec.num_kv_heads = 1;
  spec.head_dim = 64;
  const auto message = [&spec](const SparseOptions& sparse) {
    AttentionOptions options;
    options.num_heads = 2;
    options.sparse = sparse;
    auto created = PagedAttention::create(spec, options);
    return created ? std::string("created") : created.error().message();
  };
  SparseOptions bad;
  EXPECT_EQ(message(bad), "created");
  bad.token_budget = -1;
  EXPECT_THAT(message(bad), testing::HasSubstr("token_budget is -1"));
  bad = {};
  bad.recent_window = 0;
  EXPECT_THAT(message(bad), testing::HasSubstr("recent_window is 0"));
  bad = {};
  bad.sink_tokens = -3;
  EXPECT_THAT(message(bad), testing::HasSubstr("sink_tokens is -3"));
  bad = {};
  bad.dense_layers = -2;
  EXPECT_THAT(message(bad), testing::HasSubstr("dense_layers is -2"));
}

}  // namespace sparse_attention_test
}  // namespace karez
