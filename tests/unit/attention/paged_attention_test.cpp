#include "attention/paged_attention.h"

#include <gtest/gtest.h>

#include <string>

#include "support/attention_harness.h"

namespace karez {
namespace {

using test::AttentionHarness;
using test::HarnessOptions;

// Against the reference over equally rounded inputs. bf16 and q8_0: weights are rounded to 8 bits.
double tolerance(KvType type) { return type == KvType::kF32 ? 2e-6 : 4e-3; }

struct Shape {
  int num_heads;
  int num_kv_heads;
  int head_dim;
  int context;
  int num_rows;
  int window;
  float softcap;
};

// Pairwise over head counts, head dims, lengths, row counts, windows and soft caps.
constexpr Shape kShapes[] = {
    {1, 1, 16, 1, 1, 0, 0.0F},       {3, 1, 64, 15, 2, 0, 0.0F},     {9, 3, 64, 16, 5, 0, 0.0F},
    {4, 1, 80, 17, 16, 1, 0.0F},     {14, 2, 64, 255, 33, 15, 5.0F}, {8, 1, 128, 256, 1, 16, 0.0F},
    {3, 3, 96, 257, 2, 17, 0.0F},    {4, 1, 256, 257, 5, 512, 0.0F}, {9, 3, 64, 4095, 1, 0, 0.0F},
    {8, 2, 128, 4095, 2, 512, 0.0F}, {7, 1, 80, 4095, 5, 0, 50.0F},  {4, 2, 16, 33, 33, 0, 0.0F},
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
    return out;
  }
};

INSTANTIATE_TEST_SUITE_P(All, PagedAttentionBackend, testing::ValuesIn(backends()),
                         [](const testing::TestParamInfo<Backend>& backend) {
                           std::string name;
                           for (const char c : std::string(to_string(backend.param.level)) + "_" +
                                                   std::string(to_string(backend.param.type))) {
                             name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
                           }
                           return name;
                         });

TEST_P(PagedAttentionBackend, AgreesWithTheReferenceForEveryShape) {
  for (const Shape& shape : kShapes) {
    HarnessOptions o = options();
    o.num_heads = shape.num_heads;
    o.num_kv_heads = shape.num_kv_heads;
    o.head_dim = shape.head_dim;
    o.layer_windows = {shape.window};
    o.softcap = shape.softcap;
    AttentionHarness harness(o);
    const SequenceId sequence = harness.open(1);
    harness.fill(sequence, std::max(0, shape.context - shape.num_rows));
    const std::vector<test::RowRange> ranges = {{sequence, shape.num_rows}};
    const std::vector<float> out = harness.run(ranges, 1);
    EXPECT_LT(harness.error(out, ranges), tolerance(o.type))
        << "heads " << shape.num_heads << "/" << shape.num_kv_heads << " dim " << shape.head_dim
        << " context " << shape.context << " rows " << shape.num_rows << " window " << shape.window;
  }
}

}  // namespace
}  // namespace karez
