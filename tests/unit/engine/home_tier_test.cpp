#include "engine/home_tier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "attention/block_selector.h"

namespace karez::test {
namespace home_tier_test {

KVCacheSpec spec(std::vector<int> layer_windows = {}) {
  return {.num_layers = 4,
          .num_kv_heads = 2,
          .head_dim = 16,
          .type = KvType::kBf16,
          .layer_windows = std::move(layer_windows)};
}

// The definition: the most that a row selects at any position.
TEST(HomeTier, ARowOfSparseDecodeReadsNoMoreThanItCanSelect) {
  for (const int budget : {1, 100, 176, 192, 1000}) {
    for (const int recent : {0, 1, 16, 17, 18, 128}) {
      for (const int sink : {0, 16, 20, 400}) {
        const SparseOptions sparse = {
            .token_budget = budget, .recent_window = recent, .sink_tokens = sink};
        int most = 0;
        for (int position = 0; position < 3000; ++position) {
          most = std::max(most, selection_shape(sparse.rule(), position).num_selected());
        }
        ASSERT_EQ(decode_read_tokens(sparse, spec()), most * kBlockSize)
            << budget << " " << recent << " " << sink;
      }
    }
  }
}

TEST(HomeTier, ARowOfALayerWithoutSelectionReadsEverything) {
  SparseOptions sparse;
  EXPECT_EQ(decode_read_tokens(sparse, spec()), 0);
  sparse.token_budget = 256;
  EXPECT_EQ(decode_read_tokens(sparse, spec()), 256);
  sparse.dense_layers = 1;
  EXPECT_EQ(decode_read_tokens(sparse, spec()), 0);
  // Layers with a window read no more for it.
  EXPECT_EQ(decode_read_tokens(sparse, spec({64, 0, 64, 0})), 256);
  sparse.dense_layers = 2;
  EXPECT_EQ(decode_read_tokens(sparse, spec({64, 0, 64, 0})), 0);
}

}  // namespace home_tier_test
}  // namespace karez::test
