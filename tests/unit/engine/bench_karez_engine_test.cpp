// What a measured decode counts, over a store with a home tier.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "engine/bench_engine.h"
#include "engine/block_loader.h"
#include "kv/tier/host_tier.h"
#include "support/paged_fake_runner.h"

namespace karez::test {
namespace bench_karez_engine_test {

constexpr int kVocabSize = 40;

TEST(BenchKarezEngine, MakingCopiesAgainIsNoTrafficOfTheDecode) {
  // Where a window has let blocks go copies cannot be shortened.
  const KVCacheSpec spec = PagedFakeRunner::kv_spec({40, 0});
  const auto slot = static_cast<std::int64_t>(spec.slot_bytes());
  for (const int max_running : {0, 1}) {
    auto home =
        HostTier::create(
            {.block_bytes = spec.slot_bytes(), .capacity_bytes = 1000 * slot, .num_workers = 0})
            .value();
    const auto kv = KVCacheManager::create(spec, 400 * slot, std::move(home)).value();
    PagedFakeRunner runner(kVocabSize);
    BlockLoader loader;
    runner.selection_listener = &loader;
    const auto engine =
        make_karez_bench_engine(runner, *kv, nullptr, &loader, nullptr, 64, max_running);
    ASSERT_TRUE(engine->prefill(std::vector<TokenId>(200, 3)));
    ASSERT_TRUE(engine->make_copies(2));
    constexpr int kSteps = 20;
    const std::vector<TokenId> tokens(std::size_t{2} * kSteps, 5);
    const auto first = engine->decode(tokens);
    const auto second = engine->decode(tokens);
    ASSERT_TRUE(first && second);
    ASSERT_TRUE(first->traffic && second->traffic);
    EXPECT_GT(first->traffic->blocks_needed, 2 * kSteps * 200 / kBlockSize);
    EXPECT_EQ(second->traffic->blocks_needed, first->traffic->blocks_needed);
    EXPECT_EQ(second->traffic->prefetch.layers_read, first->traffic->prefetch.layers_read);
    const int num_batches = max_running == 0 ? 1 : 2;
    EXPECT_EQ(second->traffic->prefetch.layers_read, num_batches * kSteps * 2);
  }
}

}  // namespace bench_karez_engine_test
}  // namespace karez::test
