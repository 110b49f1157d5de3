#include "engine/step_batch.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "kv/kv_cache_manager.h"

namespace karez {
namespace step_batch_test {

// A prompt is not scored, so nothing is kept of it; the model then needs no outputs of its rows.
TEST(StepBatch, QueriesAreKeptFromTheFirstWindowOn) {
  KVCacheSpec spec;
  spec.num_layers = 2;
  spec.num_kv_heads = 1;
  spec.head_dim = 16;
  const auto kv =
      KVCacheManager::create(spec, 40 * static_cast<std::int64_t>(spec.slot_bytes())).value();
  WindowCompressor compressor(*kv, nullptr, {}, {1.0F, 0.0F});
  const SequenceId sequence = kv->open();
  ASSERT_TRUE(kv->extend(sequence, 48));
  const std::vector<TokenId> tokens(48, 1);
  const auto queries_of = [&](int first_position, int num_tokens) {
    StepPlan plan;
    PlannedSequence planned;
    planned.kv = sequence;
    planned.first_position = first_position;
    planned.tokens = std::span(tokens).first(static_cast<std::size_t>(num_tokens));
    planned.compression = {
        .first_position = 32, .window_tokens = 32, .kept_tokens = 16, .recent_tokens = 16};
    plan.sequences.push_back(planned);
    plan.num_tokens = num_tokens;
    return make_batch(plan, *kv, nullptr, false, &compressor).sequences.front().queries;
  };
  EXPECT_EQ(queries_of(0, 32), nullptr);
  EXPECT_EQ(queries_of(16, 16), nullptr);
  EXPECT_EQ(compressor.stats().query_bytes, 0);
  EXPECT_NE(queries_of(16, 17), nullptr);
  EXPECT_NE(queries_of(40, 1), nullptr);
  EXPECT_GT(compressor.stats().query_bytes, 0);
  kv->close(sequence);
}

}  // namespace step_batch_test
}  // namespace karez
