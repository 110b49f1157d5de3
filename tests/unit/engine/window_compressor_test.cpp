// One window at a time with hand-made keys and values: what is kept, where it goes, and when.
#include "engine/window_compressor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "attention/archive_page.h"
#include "attention/block_store.h"
#include "attention/key_index.h"
#include "engine/sequence_compression.h"
#include "kv/tier/host_tier.h"
#include "support/tier/faulty_tier.h"

namespace karez::test {
namespace window_compressor_test {

using ::testing::ElementsAreArray;
using ::testing::IsEmpty;
using Outcome = WindowCompressor::Outcome;

constexpr int kHeadDim = 16;
constexpr int kHeads = 2;

// Layers 0 and 2 see all, layer 1 a window.
KVCacheSpec spec(KvType type = KvType::kF32) {
  KVCacheSpec spec;
  spec.num_layers = 3;
  spec.num_kv_heads = kHeads;
  spec.head_dim = kHeadDim;
  spec.type = type;
  spec.layer_windows = {0, 40, 0};
  return spec;
}
constexpr int kFullLayers[] = {0, 2};

// 64 tokens from 16 on, half of them kept when 32 lie behind: 112 tokens.
CompressionSchedule schedule() {
  return {.first_position = 16, .window_tokens = 64, .kept_tokens = 32, .recent_tokens = 32};
}

// All coordinates of a pair say whose it is.
float key_of(int layer, int head, int position) {
  return static_cast<float>(layer * 2000 + head * 1000 + position);
}

class WindowCompressorTest : public testing::Test {
 protected:
  WindowCompressorTest() {
    options_.score = CompressScore::kRecent;
    options_.chunk = CompressChunk::kNone;
  }

  void start(std::int64_t num_slots = 400, std::unique_ptr<Tier> home = nullptr,
             KvType type = KvType::kF32) {
    compressor_.reset();
    kv_.reset();
    kv_ = KVCacheManager::create(spec(type),
                                 num_slots * static_cast<std::int64_t>(spec(type).slot_bytes()),
                                 std::move(home))
              .value();
    compressor_ = std::make_unique<WindowCompressor>(*kv_, nullptr, options_,
                                                     WindowCompressor::Attention{1.0F, 0.0F});
    sequence_ = kv_->open();
  }
  ~WindowCompressorTest() override {
    if (kv_ != nullptr) {
      EXPECT_EQ(kv_->check_invariants(), "");
      compressor_.reset();
      kv_->close(sequence_);
      EXPECT_EQ(kv_->stats().slots_used, 0);
    }
  }

  std::byte* slot(int layer, int head, int place) const {
    const BlockTableView table = kv_->table(sequence_, kv_->group_of_layer(layer));
    return kv_->layer(layer).slot(head, table[static_cast<std::size_t>(place / kBlockSize)]);
  }
  int place_of(int layer, int position) const {
    return position - (layer == 1 ? 0 : kv_->num_gone(sequence_));
  }
  // Until the sequence has so many tokens; each has pairs of its own.
  void grow(int num_tokens) {
    for (int position = kv_->num_tokens(sequence_); position < num_tokens; ++position) {
      ASSERT_TRUE(kv_->extend(sequence_, 1));
      for (int layer = 0; layer < 3; ++layer) {
        for (int head = 0; head < kHeads; ++head) {
          std::vector<float> key(kHeadDim, key_of(layer, head, position));
          if (edit_) {
            edit_(layer, head, position, key);
          }
          const std::vector<float> value(kHeadDim, -key_of(layer, head, position));
          const int place = place_of(layer, position);
          store_in_block(kv_->spec().type, kHeadDim, slot(layer, head, place), place % kBlockSize,
                         1, {key.data(), kHeadDim}, {value.data(), kHeadDim});
        }
      }
    }
  }
  CompressionTask task(int window = 0) const {
    return {sequence_, kv_->num_tokens(sequence_), schedule(), window,
            schedule().publication(window)};
  }
  // The positions whose pairs are at places [begin, end); values must be those of the keys.
  std::vector<int> positions_at(int layer, int head, int begin, int end) const {
    std::vector<int> positions;
    std::vector<float> keys(kBlockSize * kHeadDim);
    std::vector<float> values(kBlockSize * kHeadDim);
    for (int place = begin; place < end; ++place) {
      load_block_keys(kv_->spec().type, kHeadDim, slot(layer, head, place), keys.data());
      load_block_values(kv_->spec().type, kHeadDim, slot(layer, head, place), values.data());
      const auto at = static_cast<std::size_t>(place % kBlockSize * kHeadDim);
      const float owner = -values[at];
      for (std::size_t i = at; i < at + kHeadDim; ++i) {
        EXPECT_EQ(values[i], -owner);
      }
      if (!edit_) {
        EXPECT_EQ(keys[at], owner) << "key and value are of one token";
      }
      positions.push_back(static_cast<int>(owner - key_of(layer, head, 0)));
    }
    return positions;
  }
  static std::vector<int> range(int begin, int end) {
    std::vector<int> all(static_cast<std::size_t>(end - begin));
    std::iota(all.begin(), all.end(), begin);
    return all;
  }
  Outcome work(int units, int window = 0) {
    const Outcome outcome = compressor_->work(task(window), units);
    EXPECT_EQ(kv_->check_invariants(), "");
    return outcome;
  }
  std::unique_ptr<Tier> host_tier() const {
    return HostTier::create({.block_bytes = spec().slot_bytes(),
                             .capacity_bytes = 400 * static_cast<std::int64_t>(spec().slot_bytes()),
                             .num_workers = 0})
        .value();
  }

  CompressionOptions options_;
  std::function<void(int layer, int head, int position, std::vector<float>& key)> edit_;
  std::unique_ptr<KVCacheManager> kv_;
  std::unique_ptr<WindowCompressor> compressor_;
  SequenceId sequence_;
};

TEST_F(WindowCompressorTest, TheLatestPairsOfTheWindowAreKeptWithTheirBits) {
  start();
  grow(112);
  ASSERT_EQ(work(1000), Outcome::kPublished);
  EXPECT_EQ(kv_->num_gone(sequence_), 32);
  grow(120);
  for (const int layer : kFullLayers) {
    for (int head = 0; head < kHeads; ++head) {
      EXPECT_THAT(positions_at(layer, head, 0, 16), ElementsAreArray(range(0, 16)));
      EXPECT_THAT(positions_at(layer, head, 16, 48), ElementsAreArray(range(48, 80)));
      EXPECT_THAT(positions_at(layer, head, 48, 88), ElementsAreArray(range(80, 120)));
    }
  }
  for (int head = 0; head < kHeads; ++head) {
    EXPECT_THAT(positions_at(1, head, 96, 120), ElementsAreArray(range(96, 120)));
  }
}

TEST_F(WindowCompressorTest, EveryLayerAndHeadKeepsPairsOfItsOwn) {
  options_.score = CompressScore::kRandom;
  start();
  grow(112);
  ASSERT_EQ(work(1000), Outcome::kPublished);
  std::set<std::vector<int>> kept;
  for (const int layer : kFullLayers) {
    for (int head = 0; head < kHeads; ++head) {
      const std::vector<int> positions = positions_at(layer, head, 16, 48);
      EXPECT_TRUE(std::ranges::is_sorted(positions));
      EXPECT_GE(positions.front(), 16);
      EXPECT_LT(positions.back(), 80);
      EXPECT_EQ(std::ranges::adjacent_find(positions), positions.end());
      kept.insert(positions);
    }
  }
  EXPECT_EQ(kept.size(), 4U);
}

// Rows select by these records: they are those of the bytes that are there now, of no earlier
// block.
TEST_F(WindowCompressorTest, BlocksAndPagesHaveRecordsInTheIndex) {
  options_.score = CompressScore::kRandom;
  edit_ = [](int, int, int position, std::vector<float>& key) {
    key[static_cast<std::size_t>(position % kHeadDim)] *= -2.0F;
  };
  CompressionSchedule archiving = schedule();
  archiving.pages_per_block = pages_per_block(KvType::kF32, kHeadDim);
  const auto expect_equal = [](const std::byte* seen, const std::byte* wanted, std::size_t bytes) {
    EXPECT_EQ(std::memcmp(seen, wanted, bytes), 0);
    EXPECT_FALSE(std::all_of(wanted, wanted + bytes, [](std::byte b) { return b == std::byte{}; }));
  };
  for (const KeyIndexKind kind :
       {KeyIndexKind::kR2, KeyIndexKind::kR3, KeyIndexKind::kMinMax, KeyIndexKind::kMean}) {
    SCOPED_TRACE(to_string(kind));
    start();
    const auto index_of_store = [&] {
      return KeyIndex::create(spec(), kind, block_id_ranges(*kv_), {}, 0, archiving.pages_per_block)
          .value();
    };
    const KeyIndex seen = index_of_store();
    const KeyIndex wanted = index_of_store();
    compressor_ = std::make_unique<WindowCompressor>(*kv_, &seen, options_,
                                                     WindowCompressor::Attention{1.0F, 0.0F});
    grow(112);
    int units = 1000;
    ASSERT_EQ(compressor_->work({sequence_, 112, archiving, 0, archiving.publication(0)}, units),
              Outcome::kPublished);
    compressor_.reset();
    const BlockTableView table = kv_->table(sequence_, kv_->group_of_layer(0));
    const ArchivedEntries archived = kv_->archived(sequence_);
    ASSERT_EQ(archived.begin, 1);
    ASSERT_EQ(archived.end, 3);
    const std::size_t bytes = key_index_block_bytes(kind, kHeadDim);
    const std::size_t coarse_bytes = coarse_record_bytes(kHeadDim);
    for (const int layer : kFullLayers) {
      const KeyIndexView in = seen.view(layer);
      const KeyIndexView out = wanted.view(layer);
      for (int head = 0; head < kHeads; ++head) {
        for (int entry = 1; entry < 5; ++entry) {  // two pages, then two blocks that were kept
          SCOPED_TRACE(entry);
          const BlockId block = table[static_cast<std::size_t>(entry)];
          const std::byte* slot = kv_->layer(layer).slot(head, block);
          if (archived.contains(entry)) {
            const int page = archived.page_of(entry);
            index_archive_page(out, head, block, page, kHeadDim,
                               slot + archive_page_offset(kHeadDim, page));
            expect_equal(in.page_record(head, block, page), out.page_record(head, block, page),
                         bytes);
            if (codes_tokens(kind)) {
              expect_equal(in.coarse_page_record(head, block, page),
                           out.coarse_page_record(head, block, page), coarse_bytes);
            }
          } else {
            index_stored_block(out, head, block, kHeadDim, KvType::kF32, slot);
            expect_equal(in.record(head, block), out.record(head, block), bytes);
            if (codes_tokens(kind)) {
              expect_equal(in.coarse_record(head, block), out.coarse_record(head, block),
                           coarse_bytes);
            }
          }
        }
      }
    }
  }
}

TEST_F(WindowCompressorTest, WindowsFollowEachOther) {
  for (const KvType type : {KvType::kF32, KvType::kBf16, KvType::kQ8_0}) {
    start(400, nullptr, type);
    // Positions that all types hold exactly.
    edit_ = [](int, int, int position, std::vector<float>& key) {
      std::ranges::fill(key, static_cast<float>(position % 64));
    };
    grow(112);
    ASSERT_EQ(work(1000), Outcome::kPublished);
    grow(176);
    const std::vector<std::byte> before(slot(2, 1, 47), slot(2, 1, 47) + 64);
    ASSERT_EQ(work(1000, 1), Outcome::kPublished);
    EXPECT_EQ(kv_->num_gone(sequence_), 64);
    EXPECT_EQ(std::memcmp(before.data(), slot(2, 1, 47), 64), 0) << "the first is as it was";
    grow(240);
    ASSERT_EQ(work(1000, 2), Outcome::kPublished);
    EXPECT_EQ(kv_->num_gone(sequence_), 96);
    std::vector<float> keys(kBlockSize * kHeadDim);
    load_block_keys(type, kHeadDim, slot(0, 1, 16 + 64), keys.data());
    EXPECT_EQ(keys[0], (16 + 128 + 32) % 64) << "the first that is kept of the third";
    compressor_.reset();
    kv_->close(sequence_);
    EXPECT_EQ(kv_->stats().slots_used, 0);
    sequence_ = kv_->open();
  }
}

// The queries look for keys of one direction, which stand at different places for each head.
TEST_F(WindowCompressorTest, WhatQueriesLookForIsKept) {
  const auto is_wanted = [](int layer, int head, int position) {
    return (position + layer + head) % 3 == 0;
  };
  edit_ = [&](int layer, int head, int position, std::vector<float>& key) {
    std::ranges::fill(key, 0.0F);
    key[3] = is_wanted(layer, head, position) ? 4.0F : -4.0F;
  };
  for (const CompressScore score :
       {CompressScore::kBidirectional, CompressScore::kCausal, CompressScore::kLastQueries}) {
    options_.score = score;
    start();
    grow(112);
    QueryRing* ring = compressor_->ring(sequence_, schedule());
    EXPECT_EQ(ring, compressor_->ring(sequence_, schedule()));
    std::vector<float> queries(2 * kHeadDim, 0.0F);  // of two query heads
    queries[3] = 1.0F;
    queries[kHeadDim + 3] = 0.5F;
    for (int position = 0; position < 112; position += QueryRing::kStride) {
      for (const int layer : kFullLayers) {
        for (int head = 0; head < kHeads; ++head) {
          ring->record(layer, head, position, queries.data(), 2);
        }
      }
    }
    ASSERT_EQ(work(1000), Outcome::kPublished);
    for (const int layer : kFullLayers) {
      for (int head = 0; head < kHeads; ++head) {
        const std::vector<int> positions = positions_at(layer, head, 16, 48);
        int wanted = 0;
        for (int position = 16; position < 80; ++position) {
          wanted += is_wanted(layer, head, position) ? 1 : 0;
        }
        EXPECT_EQ(
            std::ranges::count_if(positions, [&](int at) { return is_wanted(layer, head, at); }),
            wanted)
            << to_string(score);
      }
    }
    compressor_.reset();
    kv_->close(sequence_);
  }
  start();
}

TEST_F(WindowCompressorTest, WorkIsSpreadOverTurnsAndPublishedInTime) {
  start();
  grow(95);
  EXPECT_EQ(work(1000), Outcome::kWorking) << "the queries are not all there";
  EXPECT_EQ(compressor_->units_left(task()), 4);
  EXPECT_EQ(compressor_->phase(task()).units, 0);
  EXPECT_EQ(compressor_->phase(task()).tokens_left, 1);
  grow(96);  // the publication less half of the recent tokens, and 16 before it
  EXPECT_EQ(compressor_->phase(task()).units, 4);
  EXPECT_EQ(compressor_->phase(task()).tokens_left, 16);
  int units = 1;
  EXPECT_EQ(compressor_->work(task(), units), Outcome::kWorking);
  EXPECT_EQ(units, 0);
  EXPECT_EQ(compressor_->units_left(task()), 3);
  const std::int64_t used = kv_->stats().slots_used;
  units = 2;
  EXPECT_EQ(compressor_->work(task(), units), Outcome::kWorking);
  EXPECT_EQ(compressor_->units_left(task()), 1);
  EXPECT_EQ(kv_->stats().slots_used, used + compressor_->slots_to_pack(schedule()));
  EXPECT_EQ(compressor_->slots_to_pack(schedule()), 2 * 2 * kHeads);
  units = 5;
  EXPECT_EQ(compressor_->work(task(), units), Outcome::kWorking) << "not before its position";
  EXPECT_EQ(units, 4);
  EXPECT_EQ(compressor_->units_left(task()), 0);
  grow(111);
  EXPECT_EQ(work(5), Outcome::kWorking);
  EXPECT_EQ(kv_->num_gone(sequence_), 0);
  grow(112);
  EXPECT_EQ(work(0), Outcome::kPublished);
  EXPECT_EQ(compressor_->units_left(task(1)), 4);
  EXPECT_THAT(positions_at(2, 1, 16, 48), ElementsAreArray(range(48, 80)));
}

TEST_F(WindowCompressorTest, TheTurnsInBetweenChangeNothing) {
  options_.score = CompressScore::kRandom;
  std::vector<int> at_once;
  for (const bool spread : {false, true}) {
    start();
    grow(96);
    while (spread && kv_->num_tokens(sequence_) < 112) {
      EXPECT_EQ(work(kv_->num_tokens(sequence_) % 3 == 0 ? 1 : 0), Outcome::kWorking);
      grow(kv_->num_tokens(sequence_) + 1);
    }
    grow(112);
    EXPECT_EQ(work(1000), Outcome::kPublished);
    std::vector<int> positions = positions_at(2, 0, 0, 80);
    if (!spread) {
      at_once = positions;
      compressor_.reset();
      kv_->close(sequence_);
    } else {
      EXPECT_EQ(positions, at_once);
    }
  }
}

TEST_F(WindowCompressorTest, CountsWhatItDid) {
  start();
  grow(112);
  work(1000);
  grow(176);
  work(1000, 1);
  const CompressionStats stats = compressor_->stats();
  EXPECT_EQ(stats.windows, 2);
  EXPECT_EQ(stats.pairs_kept, 2 * 32 * 2 * kHeads);
  EXPECT_EQ(stats.pairs_dropped, 2 * 32 * 2 * kHeads);
  EXPECT_EQ(stats.pairs_archived, 0);
  EXPECT_EQ(stats.bytes_saved, 2 * 2 * 2 * kHeads * static_cast<std::int64_t>(spec().slot_bytes()));
  EXPECT_GT(stats.seconds, 0);
  // One in four positions of a window and what lies behind it, as bf16, for two layers.
  EXPECT_EQ(stats.query_bytes, 96 / 4 * kHeadDim * 2 * 2 * kHeads);
  compressor_->forget(sequence_);
  EXPECT_EQ(compressor_->stats().query_bytes, 0);
  EXPECT_EQ(compressor_->stats().windows, 2);
}

TEST_F(WindowCompressorTest, WithoutRoomItSaysSoAndTriesAgain) {
  start(38);  // 34 of them are in use then, and it takes 8
  grow(111);
  EXPECT_EQ(work(1000), Outcome::kNoRoom);
  EXPECT_EQ(compressor_->units_left(task()), 2) << "it is scored";
  ASSERT_TRUE(kv_->extend(sequence_, 1));
  EXPECT_EQ(work(1000), Outcome::kNoRoom);
  EXPECT_EQ(kv_->num_gone(sequence_), 0);
  start(44);
  grow(112);
  EXPECT_EQ(work(1000), Outcome::kPublished);
}

TEST_F(WindowCompressorTest, SlotsThatAreGivenBackAreTakenAgain) {
  start();
  grow(100);
  EXPECT_FALSE(compressor_->give_back_slots(sequence_)) << "it has not begun";
  EXPECT_EQ(compressor_->slots_to_publish(task()), 8);
  EXPECT_EQ(work(3), Outcome::kWorking);
  EXPECT_EQ(compressor_->slots_to_publish(task()), 0) << "it has them";
  EXPECT_EQ(compressor_->slots_to_publish(task(1)), 8) << "the next window has none";
  const std::int64_t used = kv_->stats().slots_used;
  EXPECT_TRUE(compressor_->give_back_slots(sequence_));
  EXPECT_FALSE(compressor_->give_back_slots(sequence_));
  EXPECT_EQ(kv_->stats().slots_used, used - compressor_->slots_to_pack(schedule()));
  EXPECT_EQ(compressor_->units_left(task()), 2) << "scores are kept";
  EXPECT_EQ(compressor_->slots_to_publish(task()), 8);
  grow(112);
  EXPECT_EQ(work(1000), Outcome::kPublished);
  EXPECT_THAT(positions_at(0, 1, 16, 48), ElementsAreArray(range(48, 80)));
}

TEST_F(WindowCompressorTest, WhatIsForgottenGivesItsBlocksBack) {
  start();
  grow(100);
  const std::int64_t used = kv_->stats().slots_used;
  work(4);
  EXPECT_GT(kv_->stats().slots_used, used);
  compressor_->forget(sequence_);
  EXPECT_EQ(kv_->stats().slots_used, used);
  EXPECT_EQ(compressor_->units_left(task()), 4);
}

TEST_F(WindowCompressorTest, AForkHasTheQueriesAndAWindowOfItsOwn) {
  options_.score = CompressScore::kBidirectional;
  edit_ = [](int, int, int position, std::vector<float>& key) {
    std::ranges::fill(key, 0.0F);
    key[0] = position % 2 == 0 ? 3.0F : -3.0F;
  };
  start();
  grow(100);
  QueryRing* ring = compressor_->ring(sequence_, schedule());
  std::vector<float> query(kHeadDim, 0.0F);
  query[0] = 2.0F;
  for (int position = 0; position < 100; position += QueryRing::kStride) {
    for (const int layer : kFullLayers) {
      for (int head = 0; head < kHeads; ++head) {
        ring->record(layer, head, position, query.data(), 1);
      }
    }
  }
  work(3);
  const SequenceId fork = *kv_->fork(sequence_, 100);
  compressor_->fork(sequence_, fork);
  EXPECT_EQ(compressor_->units_left({fork, 100, schedule(), 0, schedule().publication(0)}), 4);
  compressor_->forget(sequence_);
  const SequenceId parent = std::exchange(sequence_, fork);
  grow(112);
  EXPECT_EQ(work(1000), Outcome::kPublished);
  for (const int position : positions_at(2, 0, 16, 48)) {
    EXPECT_EQ(position % 2, 0) << "what the parent's queries look for";
  }
  EXPECT_EQ(kv_->num_gone(parent), 0);
  kv_->close(parent);
}

TEST_F(WindowCompressorTest, AWindowThatIsAtHomeIsReadBack) {
  start(60, host_tier());
  for (int tokens = 16; tokens <= 112; tokens += 16) {
    grow(tokens);
    kv_->write_home(sequence_);
    kv_->residency()->advance();
  }
  kv_->residency()->settle();
  // Others take all slots.
  const SequenceId other = kv_->open();
  ASSERT_TRUE(kv_->extend(other, 9 * 16));
  EXPECT_GT(kv_->residency()->stats().evictions, 20);
  kv_->close(other);
  ASSERT_EQ(work(1000), Outcome::kPublished);
  EXPECT_GT(kv_->residency()->stats().demand_misses, 10);
  for (const int layer : kFullLayers) {
    EXPECT_THAT(positions_at(layer, 1, 16, 48), ElementsAreArray(range(48, 80)));
  }
}

TEST_F(WindowCompressorTest, AWindowThatCannotBeReadBackIsLost) {
  start(60, std::make_unique<FaultyTier>(
                host_tier(), Faults{.fail_every = 1, .hits_writes = false}, [](ExtentId, int) {},
                Clock::steady()));
  for (int tokens = 16; tokens <= 112; tokens += 16) {
    grow(tokens);
    kv_->write_home(sequence_);
    kv_->residency()->advance();
  }
  kv_->residency()->settle();
  const SequenceId other = kv_->open();
  ASSERT_TRUE(kv_->extend(other, 9 * 16));
  kv_->close(other);
  EXPECT_EQ(work(1000), Outcome::kLost);
  EXPECT_EQ(compressor_->units_left(task()), 4) << "it begins anew";
  EXPECT_EQ(kv_->num_gone(sequence_), 0);
}

// What is full and not at home yet becomes room when it is.
TEST_F(WindowCompressorTest, AWindowThatIsDueWaitsForSlotsOnTheirWayHome) {
  start(45, host_tier());  // 34 of the 44 are in use then, and it takes 18
  grow(111);
  kv_->write_home(sequence_);
  EXPECT_EQ(work(1000), Outcome::kNoRoom);
  EXPECT_EQ(kv_->residency()->stats().bytes_written, 0) << "there is time";
  grow(112);
  EXPECT_EQ(work(1000), Outcome::kPublished);
  EXPECT_GT(kv_->residency()->stats().bytes_written, 0);
}

TEST_F(WindowCompressorTest, AWindowThatFindsNoRoomToBeReadIsNotLost) {
  start(60, host_tier());
  for (int tokens = 16; tokens <= 112; tokens += 16) {
    grow(tokens);
    kv_->write_home(sequence_);
    kv_->residency()->advance();
  }
  kv_->residency()->settle();
  const SequenceId other = kv_->open();
  while (kv_->extend(other, kBlockSize)) {
  }
  EXPECT_LT(kv_->slots_available(), kHeads * 5) << "the window's blocks of a layer, and the first";
  EXPECT_EQ(work(1000), Outcome::kNoRoom);
  EXPECT_EQ(kv_->residency()->stats().blocks_lost, 0);
  kv_->close(other);
  EXPECT_EQ(work(1000), Outcome::kPublished);
  EXPECT_THAT(positions_at(2, 1, 16, 48), ElementsAreArray(range(48, 80)));
}

// For callers without a scheduler.
TEST_F(WindowCompressorTest, ASequenceAloneIsTakenFromWindowToWindow) {
  start();
  SequenceCompression alone(compressor_.get(), sequence_, schedule());
  EXPECT_EQ(alone.ring(0, 16), nullptr) << "no window is scored with these rows";
  EXPECT_EQ(compressor_->stats().query_bytes, 0);
  EXPECT_NE(alone.ring(0, 17), nullptr);
  int windows = 0;
  while (kv_->num_tokens(sequence_) < 400) {
    const int num_tokens = kv_->num_tokens(sequence_);
    EXPECT_EQ(alone.max_rows(num_tokens), 112 + windows * 64 - num_tokens);
    grow(num_tokens + std::min(5, alone.max_rows(num_tokens)));
    ASSERT_TRUE(alone.advance(kv_->num_tokens(sequence_)));
    windows = kv_->num_gone(sequence_) / 32;
  }
  EXPECT_EQ(windows, 5);
  EXPECT_EQ(compressor_->stats().windows, 5);
}

TEST_F(WindowCompressorTest, ASequenceAloneWithoutRoomGoesOnWithout) {
  start(38);
  SequenceCompression alone(compressor_.get(), sequence_, schedule());
  grow(112);
  ASSERT_TRUE(alone.advance(112));
  EXPECT_EQ(alone.max_rows(112), std::numeric_limits<int>::max());
  EXPECT_FALSE(alone.give_back_slots());
  ASSERT_TRUE(alone.advance(113));
}

TEST_F(WindowCompressorTest, ASequenceThatIsNotCompressedHasNothing) {
  start();
  {
    SequenceCompression off(nullptr, sequence_, {});
    EXPECT_EQ(off.ring(0, 500), nullptr);
    EXPECT_EQ(off.max_rows(5), std::numeric_limits<int>::max());
    EXPECT_TRUE(off.advance(5));
    EXPECT_FALSE(off.give_back_slots());
  }
  EXPECT_EQ(compressor_->stats().query_bytes, 0);
}

}  // namespace window_compressor_test
}  // namespace karez::test
