// The numbers of calls that tell how long ago a block was needed.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "kv/kv_cache_spec.h"
#include "kv/logical_blocks.h"
#include "kv/residency.h"
#include "kv/tier/host_tier.h"
#include "support/tier/fake_clock.h"

namespace karez::test {
namespace residency_calls_test {

// The number of the last call overflows within a day or more of steps: the order of age stays.
TEST(ResidencyCalls, TheirNumberDoesNotOverflow) {
  KVCacheSpec spec;
  spec.num_layers = 1;
  spec.num_kv_heads = 1;
  spec.head_dim = 16;
  const auto slot_bytes = static_cast<std::int64_t>(spec.slot_bytes());
  const FakeClock clock;
  for (const std::uint32_t calls_left : {1U, 2U, 3U, 4U, 5U}) {
    LogicalBlocks blocks = LogicalBlocks::create(spec, 7 * slot_bytes, 100).value();
    Residency residency(blocks,
                        HostTier::create({.block_bytes = spec.slot_bytes(),
                                          .capacity_bytes = 100 * slot_bytes,
                                          .num_workers = 0})
                            .value(),
                        clock, std::numeric_limits<std::uint32_t>::max() - calls_left);
    blocks.set_residency(&residency);
    std::vector<BlockId> ids(6);
    ASSERT_TRUE(blocks.allocate(0, ids));
    for (const BlockId id : ids) {
      residency.write_home(id);
    }
    residency.settle();
    const auto read = [&](std::vector<std::size_t> indices) {
      residency.begin_step();
      residency.begin_layer(0);
      for (const std::size_t i : indices) {
        EXPECT_FALSE(residency.need(0, ids[i]));
      }
      EXPECT_TRUE(residency.load().empty());
      residency.end_step();
    };
    read({4, 5});
    read({2, 3});
    read({0, 1});
    for (std::size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(residency.was_read(0, 0, ids[i]), i < 2) << i;
    }
    residency.make_room(4);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(blocks.slot_at(ids[i].value).is_none(), i >= 2) << i << " of " << calls_left;
    }
    for (const BlockId id : ids) {
      blocks.drop_reference(id);
    }
    blocks.set_residency(nullptr);
  }
}

}  // namespace residency_calls_test
}  // namespace karez::test
