// Random mixes of sequences, forks, compressed windows, row counts, sparse rows and threads against
// the reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "support/attention_harness.h"

namespace karez {
namespace {

using test::AttentionHarness;
using test::HarnessOptions;
using test::RowRange;

int pick(std::mt19937& random, std::initializer_list<int> choices) {
  return choices.begin()[random() % choices.size()];
}

HarnessOptions random_options(std::mt19937& random) {
  HarnessOptions o;
  const auto levels = supported_cpu_levels();
  o.cpu_level = levels[random() % levels.size()];
  o.type = static_cast<KvType>(random() % 3);
  o.num_kv_heads = pick(random, {1, 2, 3});
  o.num_heads = o.num_kv_heads * pick(random, {1, 2, 3, 5, 8});
  o.head_dim = pick(random, {16, 32, 48, 64, 112});
  o.layer_windows = {pick(random, {0, 1, 30, 300}), 0};
  o.softcap = random() % 4 == 0 ? 2.0F : 0.0F;
  o.max_threads = pick(random, {1, 2, 5});
  o.sparse.token_budget = pick(random, {0, 48, 100, 200});
  o.sparse.recent_window = pick(random, {1, 20, 64});
  o.sparse.sink_tokens = pick(random, {0, 16, 40});
  o.sparse.dense_layers = pick(random, {0, 0, 1, 2});
  o.sparse.block_index = static_cast<KeyIndexKind>(random() % 4);
  o.sparse.select_per = random() % 2 == 0 ? SelectPer::kHead : SelectPer::kLayer;
  o.has_pages = random() % 2 == 0;
  return o;
}

class AttentionProperty : public testing::TestWithParam<unsigned> {};
INSTANTIATE_TEST_SUITE_P(Seeds, AttentionProperty, testing::Range(0U, 40U));

TEST_P(AttentionProperty, AnyMixOfSequencesAgreesWithTheReference) {
  std::mt19937 random(GetParam());
  const HarnessOptions o = random_options(random);
  AttentionHarness harness(o);
  std::vector<SequenceId> sequences = {harness.open(1), harness.open(2)};
  for (int step = 0; step < 5; ++step) {
    std::vector<RowRange> ranges;
    for (const SequenceId sequence : sequences) {
      if (ranges.empty() || random() % 2 == 0) {
        ranges.push_back({sequence, pick(random, {1, 1, 2, 3, 17, 45, 130}),
                          pick(random, {0, 60, SequenceRows::kNeverSparse})});
      }
    }
    const std::vector<float> out =
        harness.run(ranges, 1 + static_cast<int>(random() % static_cast<unsigned>(o.max_threads)));
    ASSERT_LT(test::largest_difference(out, harness.expected(ranges)),
              o.type == KvType::kF32 && !o.has_pages ? 2e-6 : 8e-3)
        << to_string(o.cpu_level) << " " << to_string(o.type);
    const SequenceId compressed = sequences[random() % sequences.size()];
    const int num_tokens = harness.kv().num_tokens(compressed);
    const int begin = std::max(harness.compressed_end(compressed), pick(random, {0, 16, 32}));
    const int window = pick(random, {32, 80, 128});
    if (num_tokens > begin + window) {
      const int num_kept = pick(random, {16, 32});
      const auto seed = static_cast<unsigned>(random());
      const auto some = [=](int from, int to) {
        return [=](int layer, int kv_head) {
          std::vector<int> positions(static_cast<std::size_t>(window));
          std::iota(positions.begin(), positions.end(), begin);
          std::shuffle(positions.begin(), positions.end(),
                       std::mt19937(seed + static_cast<unsigned>(100 * layer + kv_head)));
          return std::vector<int>(positions.begin() + from, positions.begin() + to);
        };
      };
      const int num_archived = o.has_pages ? window - num_kept : 0;
      harness.compress(
          compressed, begin, begin + window, some(0, num_kept),
          o.has_pages ? test::KeptPairs(some(num_kept, num_kept + num_archived)) : nullptr);
    }
    const SequenceId parent = sequences[random() % sequences.size()];
    sequences.push_back(harness.fork(parent, harness.kv().num_tokens(parent)));
  }
}

}  // namespace
}  // namespace karez
