// What a restore keeps in memory while it waits for its turn to copy, and what it makes of records
// that are bad.
#include "engine/prefix_restorer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "engine/block_payload.h"
#include "support/paged_fake_runner.h"
#include "support/store/memory_records.h"

namespace karez::test {
namespace prefix_restorer_test {

constexpr int kBlocks = 200;

// False: it did not come true in a time that is long on any machine.
template <typename Condition>
bool eventually(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) {
      return false;
    }
    std::this_thread::yield();
  }
  return true;
}

// Of records that staging has room for: more than are copied in a call beside others, and fewer.
class PrefixRestorerStaging : public testing::TestWithParam<std::int64_t> {
 protected:
  PrefixRestorerStaging() {
    const KVCacheSpec spec = PagedFakeRunner::kv_spec({0, 0});
    const auto cap = static_cast<std::int64_t>(spec.slot_bytes()) *
                     spec.slots_for_sequence((kBlocks + 2) * kBlockSize, kBlockSize);
    kv_ = KVCacheManager::create(spec, cap).value();
    cache_ = std::make_unique<PrefixCache>(*kv_, "fake");
    PrefixStoreOptions options;
    options.shape = {identity_digest("fake"), payload_bytes_of(spec)};
    const auto record_bytes = static_cast<std::int64_t>(options.shape.record_bytes());
    options.load_staging_bytes = GetParam() * record_bytes;
    options.store_staging_bytes = kBlocks * record_bytes;
    records_ = std::make_shared<MemoryRecords>([this](std::string_view call) {
      num_reads_ += call == "read" ? 1 : 0;
      return std::optional<Status>();
    });
    store_ = std::make_unique<PrefixStore>(options, records_);
    for (int i = 0; i <= kBlocks * kBlockSize; ++i) {
      request_.prompt.push_back(i % 37);
    }
    request_.id = 1;
    keys_ = record_keys(options.shape.identity, request_.cache_salt, request_.prompt, kBlocks);
    for (const RecordKey& key : keys_) {
      PrefixStore::Buffer buffer = store_->room_to_write().value();
      std::ranges::fill(buffer.payload(), std::byte{0});
      store_->write(key, /*use_time_ns=*/0, std::move(buffer));
    }
  }

  // Of the blocks from `first` on.
  std::int64_t num_known(std::size_t first) const {
    return std::ranges::count_if(std::span(keys_).subspan(first),
                                 [&](const RecordKey& key) { return store_->is_known(key.name); });
  }

  std::unique_ptr<KVCacheManager> kv_;
  std::unique_ptr<PrefixCache> cache_;
  std::atomic<std::int64_t> num_reads_ = 0;
  std::shared_ptr<MemoryRecords> records_;
  std::unique_ptr<PrefixStore> store_;
  Request request_;
  std::vector<RecordKey> keys_;
};

TEST_P(PrefixRestorerStaging, IsFullOfRecordsWhileTheModelComputes) {
  ASSERT_TRUE(eventually([&] { return store_->stats().stored_blocks == kBlocks; }));
  PrefixRestorer restorer(*kv_, *cache_, *store_, nullptr, /*limit_seconds=*/1e9,
                          [] { return 0.0; });
  ASSERT_TRUE(restorer.hold(request_, request_.prompt.size()));
  int num_calls = 0;
  while (restorer.num_held() > 0) {
    restorer.advance(/*spare_slots=*/0, /*is_idle=*/false);
    if (restorer.stats().hits == 0) {
      std::this_thread::yield();  // it is still looked for
      continue;
    }
    // As many as there is room for, and no more.
    const std::int64_t wanted =
        std::min<std::int64_t>(kBlocks, restorer.stats().restored_blocks + GetParam());
    ASSERT_TRUE(eventually([&] { return num_reads_ >= wanted; }));
    ASSERT_EQ(num_reads_, wanted);
    ++num_calls;
  }
  EXPECT_EQ(restorer.stats().restored_blocks, kBlocks);
  EXPECT_GT(num_calls, kBlocks / 20);
  EXPECT_EQ(restorer.take_ready().size(), 1U);
}

TEST_P(PrefixRestorerStaging, WhatIsBehindABadRecordIsDoubtedUnlessItHasBeenReadWhole) {
  constexpr std::size_t kBad = 50;
  ASSERT_TRUE(eventually([&] { return store_->stats().stored_blocks == kBlocks; }));
  ASSERT_TRUE(records_->flip_a_bit(keys_[kBad].name));
  PrefixRestorer restorer(*kv_, *cache_, *store_, nullptr, /*limit_seconds=*/1e9,
                          [] { return 0.0; });
  ASSERT_TRUE(restorer.hold(request_, request_.prompt.size()));
  ASSERT_TRUE(eventually([&] {
    restorer.advance(/*spare_slots=*/0, /*is_idle=*/true);
    return restorer.num_held() == 0;
  }));
  EXPECT_EQ(restorer.stats().restored_blocks, static_cast<std::int64_t>(kBad));
  EXPECT_EQ(num_known(0) - num_known(kBad), static_cast<std::int64_t>(kBad));
  EXPECT_FALSE(store_->is_known(keys_[kBad].name));
  // Read ahead are those that staging has room for.
  EXPECT_LT(num_known(kBad), GetParam());
  EXPECT_EQ(num_known(kBad + static_cast<std::size_t>(GetParam())), 0);
}

TEST_P(PrefixRestorerStaging, NothingIsDoubtedWhereARestoreEndsForWantOfSlots) {
  ASSERT_TRUE(eventually([&] { return store_->stats().stored_blocks == kBlocks; }));
  PrefixRestorer restorer(*kv_, *cache_, *store_, nullptr, /*limit_seconds=*/1e9,
                          [] { return 0.0; });
  ASSERT_TRUE(restorer.hold(request_, request_.prompt.size()));
  ASSERT_TRUE(eventually([&] {
    restorer.advance(/*spare_slots=*/kv_->slots_available() + 1, /*is_idle=*/false);
    return restorer.num_held() == 0;
  }));
  EXPECT_EQ(restorer.stats().hits, 1);
  EXPECT_EQ(restorer.stats().restored_blocks, 0);
  EXPECT_EQ(num_known(0), kBlocks);
}

INSTANTIATE_TEST_SUITE_P(Staging, PrefixRestorerStaging, testing::Values(8, 32));

}  // namespace prefix_restorer_test
}  // namespace karez::test
