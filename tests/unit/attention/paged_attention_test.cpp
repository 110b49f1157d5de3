#include "attention/paged_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <string>

#include "support/attention_harness.h"

namespace karez {
namespace paged_attention_test {

using test::AttentionHarness;
using test::HarnessOptions;
using test::largest_difference;
using test::RowRange;
using test::same_bits;

// Against the reference over equally rounded inputs. bf16 and q8_0: weights are rounded to 8 bits.
double tolerance(KvType type) { return type == KvType::kF32 ? 2e-6 : 4e-3; }

struct Shape {
  int num_heads;
  int num_kv_heads;
  int head_dim;
  int context;  // after the rows
  int num_rows;
  int window;
  float softcap;
};

// Pairs of head counts, head dims, lengths, row counts, windows and soft caps.
constexpr Shape kShapes[] = {
    {1, 1, 16, 1, 1, 0, 0.0F},       {3, 1, 64, 15, 2, 0, 0.0F},     {9, 3, 64, 16, 5, 0, 0.0F},
    {4, 1, 80, 17, 16, 1, 0.0F},     {14, 2, 64, 255, 33, 15, 5.0F}, {8, 1, 128, 256, 1, 16, 0.0F},
    {3, 3, 96, 257, 2, 17, 0.0F},    {4, 1, 256, 257, 5, 512, 0.0F}, {9, 3, 64, 4095, 1, 0, 0.0F},
    {8, 1, 128, 4095, 2, 512, 0.0F}, {7, 1, 80, 4095, 2, 0, 50.0F},  {4, 2, 16, 33, 33, 0, 0.0F},
    {8, 1, 256, 300, 16, 0, 0.0F},   {6, 2, 64, 600, 33, 17, 0.0F},  {1, 1, 512, 40, 3, 0, 0.0F}};

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

class PagedAttentionBackend : public testing::TestWithParam<Backend> {
 protected:
  HarnessOptions options() const {
    HarnessOptions out;
    out.type = GetParam().type;
    out.cpu_level = GetParam().level;
    out.max_threads = 8;
    return out;
  }
};

INSTANTIATE_TEST_SUITE_P(All, PagedAttentionBackend, testing::ValuesIn(backends()),
                         [](const testing::TestParamInfo<Backend>& backend) {
                           std::string name = std::string(to_string(backend.param.level)) + "_" +
                                              std::string(to_string(backend.param.type));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(PagedAttentionBackend, AgreesWithTheReferenceForEveryShape) {
  // The reference is the same for all levels of a type.
  static std::map<std::pair<KvType, const Shape*>, std::vector<float>> expected;
  for (const Shape& shape : kShapes) {
    HarnessOptions o = options();
    o.num_heads = shape.num_heads;
    o.num_kv_heads = shape.num_kv_heads;
    o.head_dim = shape.head_dim;
    o.layer_windows = {shape.window};
    o.softcap = shape.softcap;
    AttentionHarness harness(o);
    const SequenceId sequence = harness.open(1);
    harness.fill(sequence, shape.context - shape.num_rows);
    const std::vector<RowRange> ranges = {{sequence, shape.num_rows}};
    const std::vector<float> out = harness.run(ranges, 1);
    auto [entry, is_new] = expected.try_emplace({o.type, &shape});
    if (is_new) {
      entry->second = harness.expected(ranges);
    }
    EXPECT_LT(largest_difference(out, entry->second), tolerance(o.type))
        << "heads " << shape.num_heads << "/" << shape.num_kv_heads << " dim " << shape.head_dim
        << " context " << shape.context << " rows " << shape.num_rows << " window " << shape.window;
  }
}

// All rows of one sequence, fed in chunks of the given sizes.
std::vector<float> fed_in_chunks(const HarnessOptions& o, const std::vector<int>& chunks,
                                 int num_threads) {
  AttentionHarness harness(o);
  const SequenceId sequence = harness.open(1);
  std::vector<float> out;
  for (const int rows : chunks) {
    const std::vector<float> part = harness.run({{sequence, rows}}, num_threads);
    out.insert(out.end(), part.begin(), part.end());
  }
  return out;
}

TEST_P(PagedAttentionBackend, GivesTheSameBitsForAnyChunkingAndNumberOfThreads) {
  for (const int window : {0, 37}) {
    HarnessOptions o = options();
    o.num_heads = 6;
    o.num_kv_heads = 2;
    o.head_dim = 80;
    o.layer_windows = {window};
    const std::vector<float> whole = fed_in_chunks(o, {530}, 1);
    for (const int num_threads : {2, 3, 8}) {
      EXPECT_TRUE(same_bits(fed_in_chunks(o, {530}, num_threads), whole));
    }
    EXPECT_TRUE(same_bits(fed_in_chunks(o, {256, 274}, 2), whole));
    EXPECT_TRUE(same_bits(fed_in_chunks(o, {1, 16, 33, 205, 2, 3, 5, 7, 255, 1, 1, 1}, 3), whole));
  }
}

TEST_P(PagedAttentionBackend, GivesTheSameBitsAloneAndInAnyCompany) {
  HarnessOptions o = options();
  o.num_heads = 9;
  o.num_kv_heads = 3;
  AttentionHarness alone(o);
  AttentionHarness crowd(o);
  const SequenceId lonely = alone.open(1);
  alone.fill(lonely, 300);
  const SequenceId first = crowd.open(2);
  const SequenceId member = crowd.open(1);
  const SequenceId last = crowd.open(3);
  crowd.fill(first, 700);
  crowd.fill(member, 300);
  for (const int rows : {1, 4, 40}) {
    const std::vector<float> expected = alone.run({{lonely, rows}}, 1);
    const std::vector<float> all = crowd.run({{first, 1}, {member, rows}, {last, 50}}, 3);
    const auto row_floats = std::ptrdiff_t{9} * o.head_dim;
    EXPECT_TRUE(same_bits(
        std::vector<float>(all.begin() + row_floats, all.begin() + row_floats * (1 + rows)),
        expected));
  }
}

TEST_P(PagedAttentionBackend, ForksThatShareBlocksAgreeWithTheReference) {
  HarnessOptions o = options();
  o.num_heads = 4;
  o.num_kv_heads = 2;
  o.head_dim = 32;
  AttentionHarness harness(o);
  const SequenceId parent = harness.open(1);
  harness.fill(parent, 290);
  const SequenceId whole = harness.fork(parent, 290);
  const SequenceId part = harness.fork(parent, 150);
  const std::vector<RowRange> ranges = {{parent, 3}, {whole, 1}, {part, 20}};
  const std::vector<float> out = harness.run(ranges, 2);
  EXPECT_LT(largest_difference(out, harness.expected(ranges)), tolerance(o.type));
}

TEST_P(PagedAttentionBackend, LayersWithDifferentWindowsReadTheirOwnTables) {
  HarnessOptions o = options();
  o.layer_windows = {20, 0, 20};
  AttentionHarness harness(o);
  const SequenceId sequence = harness.open(1);
  harness.fill(sequence, 100);
  for (const int rows : {1, 1, 30, 1}) {
    const std::vector<RowRange> ranges = {{sequence, rows}};
    const std::vector<float> out = harness.run(ranges, 2);
    EXPECT_LT(largest_difference(out, harness.expected(ranges)), tolerance(o.type));
  }
}

TEST_P(PagedAttentionBackend, ScoresOfTenThousandAndOfZeroAreFine) {
  for (const float query_range : {20000.0F, 0.0F}) {
    HarnessOptions o = options();
    o.head_dim = 16;
    o.scale = 1.0F;
    o.query_range = query_range;
    AttentionHarness harness(o);
    const SequenceId sequence = harness.open(1);
    harness.fill(sequence, 280);
    const std::vector<RowRange> ranges = {{sequence, 3}};
    const std::vector<float> out = harness.run(ranges, 1);
    // At such scores the last bit of an f32 score is 0.002: what differs that little is a tie.
    EXPECT_LT(largest_difference(out, harness.expected(ranges)),
              query_range > 0.0F ? 2e-2 : tolerance(o.type));
  }
}

TEST_P(PagedAttentionBackend, InfinitiesOfAnEarlierOwnerOfTheSlotDoNotShow) {
  HarnessOptions o = options();
  o.max_tokens = 16;
  AttentionHarness harness(o);
  // Every slot is filled with values that are not finite, then given back.
  std::vector<SequenceId> owners;
  for (int i = 0; i < 60; ++i) {
    owners.push_back(harness.open(AttentionHarness::kInfiniteContent));
    harness.fill(owners.back(), kBlockSize);
  }
  for (const SequenceId owner : owners) {
    harness.close(owner);
  }
  const SequenceId sequence = harness.open(1);
  const std::vector<RowRange> ranges = {{sequence, 5}};
  const std::vector<float> out = harness.run(ranges, 1);
  EXPECT_LT(largest_difference(out, harness.expected(ranges)), tolerance(o.type));
}

TEST(PagedAttention, PlannedReadBytesCountsTheVisibleBlocksOfEachHead) {
  HarnessOptions o;
  o.num_heads = 4;
  o.num_kv_heads = 2;
  o.layer_windows = {0, 20};
  AttentionHarness harness(o);
  const SequenceId a = harness.open(1);
  const SequenceId b = harness.open(2);
  harness.fill(a, 100);
  harness.run({{a, 1}, {b, 40}}, 1);
  const auto slot = static_cast<std::int64_t>(harness.kv().spec().slot_bytes());
  EXPECT_EQ(harness.planned_read_bytes(0), slot * 2 * (7 + 3));
  // Row 100 with a window of 20 sees positions 81 to 100: blocks 5 and 6.
  EXPECT_EQ(harness.planned_read_bytes(1), slot * 2 * (2 + 3));
}

TEST(PagedAttention, CreateNamesTheOptionThatIsWrong) {
  KVCacheSpec spec;
  spec.num_layers = 1;
  spec.num_kv_heads = 2;
  spec.head_dim = 64;
  AttentionOptions good;
  good.num_heads = 4;
  ASSERT_TRUE(PagedAttention::create(spec, good).has_value());

  const auto message = [&spec](const AttentionOptions& options) {
    auto created = PagedAttention::create(spec, options);
    return created ? std::string("created") : created.error().message();
  };
  AttentionOptions bad = good;
  bad.num_heads = 5;
  EXPECT_THAT(message(bad), testing::HasSubstr("num_heads is 5"));
  bad = good;
  bad.scale = -1.0F;
  EXPECT_THAT(message(bad), testing::HasSubstr("scale is -1"));
  bad = good;
  bad.logit_softcap = -2.0F;
  EXPECT_THAT(message(bad), testing::HasSubstr("logit_softcap is -2"));
  bad = good;
  bad.max_threads = 0;
  EXPECT_THAT(message(bad), testing::HasSubstr("max_threads is 0"));
  spec.head_dim = 20;
  EXPECT_THAT(message(good), testing::HasSubstr("20"));
}

}  // namespace paged_attention_test
}  // namespace karez
