// What compression of aged windows does to an engine: when, at what cost of slots, and what is
// asked for. engine_compress_matrix_test.cpp has it together with everything else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kv/kv_cache_manager.h"
#include "support/compressing_engine.h"
#include "support/tier/faulty_tier.h"

namespace karez::test {
namespace engine_compress_test {

using ::testing::HasSubstr;

class EngineCompressed : public CompressingEngine {};

TEST_F(EngineCompressed, TextIsThatWithoutCompressionUntilTheFirstPublication) {
  options_.compress = false;
  const std::vector<Request> requests = {request(20, 300, 3), request(70, 250, 5)};
  const Answers plain = run_alone(requests);
  options_.compress = true;
  for (const CompressScore score : {CompressScore::kRecent, CompressScore::kRandom}) {
    options_.compression.score = score;
    const Answers seen = run_alone(requests);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const std::vector<TokenId>& tokens = seen.at({i, 0}).tokens;
      const auto same = std::ranges::mismatch(tokens, plain.at({i, 0}).tokens).in1 - tokens.begin();
      const int prompt = static_cast<int>(requests[i].prompt.size());
      // The row at publication - 1 is the last one that sees all.
      const int publication = (prompt + 15) / 16 * 16 + 64 + 32;
      EXPECT_GE(same, publication - prompt + 1);
      EXPECT_LE(same, publication - prompt + 12) << "and soon after it is another";
    }
  }
}

TEST_F(EngineCompressed, SlotsAreThoseWithoutCompressionUntilAWindowIsPacked) {
  // The blocks that a window is packed into are held beside its own, for so many tokens at most
  // before they take its place.
  constexpr int kTokensPacked = 16;
  constexpr int kPrompt = 20;
  const Request one = request(kPrompt, 150, 3);
  options_.prefix_cache = false;
  options_.compress = false;
  start(kWithRoom);
  run({one});
  const std::vector<std::int64_t> plain = slots_of_steps_;
  options_.compress = true;
  for (const CompressArchive archive : {CompressArchive::kOff, CompressArchive::kR4}) {
    options_.compression.archive = archive;
    start(kWithRoom);
    run({one});
    ASSERT_EQ(slots_of_steps_.size(), plain.size());
    ASSERT_EQ(engine_->stats().compression.windows, 1);
    // Of the window's four blocks two are kept; two archived pages take one more.
    const std::int64_t blocks = archive == CompressArchive::kR4 ? 3 : 2;
    constexpr int kPublication = 32 + 64 + 32;
    for (std::size_t step = 0; step < plain.size(); ++step) {
      // Whose KV is written when the step begins: the prompt's are, but in the first one.
      const int num_tokens = step == 0 ? 0 : kPrompt + static_cast<int>(step) - 1;
      SCOPED_TRACE(num_tokens);
      const std::int64_t more = slots_of_steps_[step] - plain[step];
      if (num_tokens < kPublication - kTokensPacked) {
        EXPECT_EQ(more, 0);
      } else if (num_tokens < kPublication) {
        EXPECT_TRUE(more == 0 || more == blocks * kFullLayers) << more;
      } else {
        EXPECT_EQ(more, (blocks - 4) * kFullLayers);
      }
    }
  }
}

TEST_F(EngineCompressed, FewerSlotsAreUsedAndAllComeBack) {
  const Request one = request(30, 700, 3);
  options_.compress = false;
  options_.prefix_cache = false;
  start(kWithRoom);
  run({one});
  const std::int64_t plain = peak_slots_;
  EXPECT_EQ(engine_->stats().slots_used, 0);
  options_.compress = true;
  std::int64_t last = plain;
  for (const double keep : {0.5, 0.25}) {
    options_.compression.keep = keep;
    start(kWithRoom);
    run({one});
    EXPECT_LT(peak_slots_, last) << keep;
    const double wanted = static_cast<double>(plain) * keep;
    EXPECT_LT(static_cast<double>(peak_slots_), wanted + 12 * 4) << keep;
    last = peak_slots_;
    const EngineStats stats = engine_->stats();
    EXPECT_EQ(stats.slots_used, 0);
    EXPECT_EQ(stats.compression.windows, windows_of(one));
    const auto kept = static_cast<std::int64_t>(64 * keep);
    EXPECT_EQ(stats.compression.pairs_kept, stats.compression.windows * kept * kFullLayers);
    EXPECT_EQ(stats.compression.pairs_dropped,
              stats.compression.windows * (64 - kept) * kFullLayers);
    EXPECT_EQ(stats.compression.pairs_archived, 0);
    EXPECT_EQ(stats.compression.bytes_saved, stats.compression.windows * (64 - kept) / kBlockSize *
                                                 kFullLayers *
                                                 static_cast<std::int64_t>(spec().slot_bytes()));
    EXPECT_GT(stats.compression.seconds, 0);
    EXPECT_EQ(stats.compression.query_bytes, 0);
  }
}

TEST_F(EngineCompressed, CountsWhatItArchives) {
  const Request one = request(30, 700, 3);
  options_.prefix_cache = false;
  options_.compression.archive = CompressArchive::kR4;
  start(kWithRoom);
  run({one});
  const CompressionStats stats = engine_->stats().compression;
  EXPECT_EQ(stats.windows, windows_of(one));
  EXPECT_GT(stats.pairs_archived, 0);
  EXPECT_EQ(stats.pairs_archived, stats.windows * 32 * kFullLayers);
  EXPECT_EQ(stats.pairs_kept, stats.pairs_archived);
  EXPECT_EQ(stats.pairs_dropped, 0);
  // Four blocks become two and one with two pages.
  EXPECT_EQ(stats.bytes_saved,
            stats.windows * kFullLayers * static_cast<std::int64_t>(spec().slot_bytes()));
}

TEST_F(EngineCompressed, MoreFitIntoTheSamePool) {
  // Eight answers of 600 tokens; without compression three fit.
  std::vector<Request> requests;
  for (int i = 0; i < 8; ++i) {
    requests.push_back(request(10, 600, static_cast<TokenId>(i)));
  }
  options_.prefix_cache = false;
  options_.compression.keep = 0.25;
  const Answers wanted = run_alone(requests);
  start(8 * (kFullLayers * 22 + 8));
  expect_same(run(requests), wanted);
  EXPECT_EQ(engine_->stats().preemptions, 0);
  options_.compress = false;
  start(8 * (kFullLayers * 22 + 8));
  run(requests);
  EXPECT_GT(engine_->stats().preemptions, 0);
}

// Cut into steps and preempted while the prompt is computed, too.
TEST_F(EngineCompressed, PromptsAreCompressedIfAsked) {
  options_.compression.compresses_prompt = true;
  options_.compression.recent_tokens = 0;  // then no window is ever compressed earlier
  std::vector<Request> requests;
  for (int i = 0; i < 6; ++i) {
    requests.push_back(request(150 + i * 60, 20 + i * 20, 1 + i % 3, i % 3 == 2 ? 2 : 1));
  }
  const Answers wanted = run_alone(requests);
  for (const int num_slots : {kWithRoom, 150}) {
    for (const int batched_tokens : {512, 50}) {
      options_.scheduler.max_num_batched_tokens = batched_tokens;
      start(num_slots);
      expect_same(run(requests), wanted);
      expect_same(run(requests), wanted);
      EXPECT_EQ(engine_->stats().slots_used, 0);
    }
  }
  start(140, host_tier(3000, false));
  expect_same(run(requests), wanted);
  EXPECT_GT(engine_->stats().compression.windows, 6 * 2);
}

TEST_F(EngineCompressed, RequestsSayWhetherTheyAreCompressed) {
  options_.compress = false;
  Request plain = request(20, 200, 3);
  const Answer uncompressed = run_alone({plain}).at({0, 0});
  Request asking = plain;
  asking.kv_compression.enabled = true;
  const Answer compressed = run_alone({asking}).at({0, 0});
  EXPECT_NE(compressed.tokens, uncompressed.tokens);
  options_.compress = true;
  EXPECT_EQ(run_alone({plain}).at({0, 0}).tokens, compressed.tokens);
  plain.kv_compression.enabled = false;
  EXPECT_EQ(run_alone({plain}).at({0, 0}).tokens, uncompressed.tokens);
  EXPECT_EQ(engine_->stats().compression.windows, 0);
  asking.kv_compression.keep = 0.25;
  EXPECT_NE(run_alone({asking}).at({0, 0}).tokens, compressed.tokens);
  EXPECT_EQ(engine_->stats().compression.pairs_kept,
            engine_->stats().compression.windows * 16 * kFullLayers);
}

TEST_F(EngineCompressed, ScoresThatReadQueriesRunToo) {
  for (const CompressScore score :
       {CompressScore::kBidirectional, CompressScore::kCausal, CompressScore::kLastQueries}) {
    for (const CompressChunk chunk :
         {CompressChunk::kToken2Chunk, CompressChunk::kNone, CompressChunk::kFixed}) {
      options_.compression.score = score;
      options_.compression.chunk = chunk;
      start(kWithRoom);
      for (const auto& [key, answer] : run({request(20, 200, 3), request(60, 200, 4)})) {
        EXPECT_EQ(answer.tokens.size(), 200U);
        EXPECT_EQ(answer.last.finished, FinishReason::kLength);
      }
      EXPECT_EQ(engine_->stats().slots_used, 0);
    }
  }
}

// Without room for one window more it answers as far as a plain run would.
TEST_F(EngineCompressed, ALoneRequestThatFillsTheFastTierGoesAsFarAsWithoutCompression) {
  options_.prefix_cache = false;
  const Request one = request(60, 1500, 3);
  for (const int num_slots : {35, 36, 38, 40, 42, 45, 50}) {
    options_.compress = false;
    start(num_slots);
    const Answer plain = run({one}).at({0, 0});
    EXPECT_EQ(plain.last.finished, FinishReason::kLength);
    options_.compress = true;
    start(num_slots);
    const Answer seen = run({one}).at({0, 0});
    EXPECT_GE(seen.tokens.size(), plain.tokens.size()) << num_slots;
    EXPECT_EQ(engine_->stats().slots_used, 0);
  }
}

TEST_F(EngineCompressed, ATierThatFailsCostsTimeAndNoToken) {
  const std::vector<Request> requests = many_requests();
  const Answers& wanted = answers_of_many();
  options_.scheduler.decode_floor_tokens = 48;
  start(160, std::make_unique<FaultyTier>(
                 host_tier(3000, false), Faults{.fail_every = 6000}, [](ExtentId, int) {},
                 Clock::steady()));
  expect_same(run(requests), wanted);
  EXPECT_GT(engine_->stats().tiers.blocks_lost, 0);
  EXPECT_EQ(engine_->stats().slots_used, 0);
}

TEST_F(EngineCompressed, WhatIsAskedForWronglyIsNamed) {
  start(kWithRoom);
  const auto refused = [&](const KvCompressionRequest& asked) {
    Request one = request(20, 20, 3);
    one.kv_compression = asked;
    const auto id = engine_->submit(one, [](const GenerationEvent&) {});
    EXPECT_FALSE(id);
    EXPECT_EQ(id.error().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(id.error().message(), testing::StartsWith(id.error().field()));
    return id.error();
  };
  for (const double keep : {0.0, 1.0}) {
    const Status status = refused({.enabled = true, .keep = keep, .window_tokens = {}});
    EXPECT_EQ(status.field(), "kv_compression.keep");
    EXPECT_THAT(status.message(), HasSubstr(keep > 0 ? "keep is 1," : "keep is 0,"));
  }
  for (const int window : {0, 16, 40, 4112, (1 << 20) + 16}) {
    const Status status = refused({.enabled = {}, .keep = {}, .window_tokens = window});
    EXPECT_EQ(status.field(), "kv_compression.window");
    EXPECT_THAT(status.message(), HasSubstr("window is " + std::to_string(window)));
  }
  // Nothing is wrong with figures that are not used.
  Request off = request(20, 5, 3);
  off.kv_compression = {.enabled = false, .keep = 7.0, .window_tokens = 3};
  EXPECT_EQ(run({off}).at({0, 0}).tokens.size(), 5U);
  // Of two fields neither is at fault alone.
  options_.compression.fixed_chunk_tokens = 32;
  start(kWithRoom);
  const Status status = refused({.enabled = {}, .keep = 0.25, .window_tokens = {}});
  EXPECT_EQ(status.field(), "kv_compression");
  EXPECT_THAT(status.message(), HasSubstr("compress-chunk is fixed=32"));
}

TEST_F(EngineCompressed, AModelOfWindowsAloneIsNotCompressed) {
  const KVCacheSpec windows = PagedFakeRunner::kv_spec({40, 20});
  options_.compress = false;
  engine_ = Engine::create(options_, std::make_unique<PagedFakeRunner>(kVocabSize),
                           KVCacheManager::create(
                               windows, 500 * static_cast<std::int64_t>(windows.slot_bytes()))
                               .value(),
                           vocabulary_)
                .value();
  Request one = request(20, 200, 3);
  EXPECT_EQ(run({one}).at({0, 0}).tokens.size(), 200U);
  one.kv_compression.enabled = true;
  const auto refused = engine_->submit(one, [](const GenerationEvent&) {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.error().message(), HasSubstr("sliding window"));
  EXPECT_EQ(refused.error().field(), "kv_compression");
  one.kv_compression.enabled = false;
  EXPECT_EQ(run({one}).at({0, 0}).tokens.size(), 200U);
}

}  // namespace engine_compress_test
}  // namespace karez::test
