#include "kv/tier/throttled_tier.h"

#include <gtest/gtest.h>

#include "kv/tier/host_tier.h"
#include "support/tier/fake_clock.h"
#include "support/tier/fast_memory.h"

namespace karez::test {
namespace {

using std::chrono::microseconds;

// 4 KiB in a millisecond, and then 200 us.
constexpr Throttle kThrottle = {.bytes_per_second = 4096 * 1000, .latency = microseconds(200)};

class ThrottledTierTest : public testing::Test {
 protected:
  void SetUp() override {
    HostTierOptions options;
    options.block_bytes = 4096;
    options.capacity_bytes = 1 << 20;
    options.num_workers = 0;
    auto host = HostTier::create(options);
    ASSERT_TRUE(host);
    tier_ = std::make_unique<ThrottledTier>(std::move(*host), kThrottle, clock_);
  }
  void submit_write(int num_blocks) {
    Transfer transfer;
    transfer.id = ++last_id_;
    transfer.direction = TransferDirection::kWrite;
    transfer.extent = *tier_->allocate_extent();
    transfer.num_blocks = num_blocks;
    for (int i = 0; i < num_blocks; ++i) {
      transfer.memory[static_cast<std::size_t>(i)] = memory_.slot(i);
    }
    ASSERT_EQ(tier_->submit({&transfer, 1}), 1U);
  }
  // The ids that come, and when, in microseconds from the first call.
  std::vector<std::pair<std::uint64_t, std::int64_t>> run() {
    std::vector<std::pair<std::uint64_t, std::int64_t>> seen;
    while (tier_->capacity().in_flight > 0) {
      std::vector<TransferResult> results;
      tier_->poll(results);
      for (const TransferResult& result : results) {
        seen.emplace_back(result.transfer.id,
                          std::chrono::duration_cast<microseconds>(clock_.now() - start_).count());
      }
      tier_->wait_until(clock_.now() + std::chrono::hours(1));
    }
    return seen;
  }

  FakeClock clock_;
  const Clock::TimePoint start_ = clock_.now();
  FastMemory memory_{4096, 4};
  std::unique_ptr<ThrottledTier> tier_;
  std::uint64_t last_id_ = 0;
};

using Seen = std::vector<std::pair<std::uint64_t, std::int64_t>>;

TEST_F(ThrottledTierTest, TransfersTakeTheLinkOneAfterAnother) {
  submit_write(1);
  submit_write(2);
  submit_write(1);
  EXPECT_EQ(run(), (Seen{{1, 1200}, {2, 3200}, {3, 4200}}));
}

TEST_F(ThrottledTierTest, AnIdleLinkSavesNothingUp) {
  submit_write(1);
  clock_.advance(microseconds(10'000));
  submit_write(1);
  EXPECT_EQ(run(), (Seen{{1, 10'000}, {2, 11'200}}));
}

TEST_F(ThrottledTierTest, NothingIsReportedEarly) {
  submit_write(1);
  clock_.advance(microseconds(1199));
  std::vector<TransferResult> results;
  tier_->poll(results);
  EXPECT_TRUE(results.empty());
  EXPECT_EQ(tier_->capacity().in_flight, 1);
  clock_.advance(microseconds(1));
  tier_->poll(results);
  EXPECT_EQ(results.size(), 1U);
}

TEST_F(ThrottledTierTest, SaysHowSlowItIs) {
  EXPECT_EQ(tier_->describe(),
            "host memory: 1.0 MiB, 0 worker threads, throttled to 3.9 MiB/s, 200 us");
}

}  // namespace
}  // namespace karez::test
