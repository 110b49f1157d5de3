// Which answers keep queries for compression, and how many they may ask for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "engine/block_loader.h"
#include "engine/engine.h"
#include "support/fake_vocabulary.h"
#include "support/paged_fake_runner.h"

namespace karez::test {
namespace engine_compress_queries_test {

constexpr int kVocabSize = 40;
constexpr int kSlots = 1000;

class EngineCompressQueries : public testing::Test {
 protected:
  EngineCompressQueries() { start(64); }
  ~EngineCompressQueries() override { running_ = nullptr; }

  void start(int max_num_seqs) {
    running_ = nullptr;
    EngineOptions options;
    options.scheduler.max_num_seqs = max_num_seqs;
    options.context_tokens = 2000;
    options.compress = true;
    options.compression.window_tokens = 64;
    options.compression.recent_tokens = 32;
    options.compression.archive = CompressArchive::kOff;
    const KVCacheSpec spec = PagedFakeRunner::kv_spec({0, 0});
    auto kv = KVCacheManager::create(spec, static_cast<std::int64_t>(spec.slot_bytes()) * kSlots);
    auto runner = std::make_unique<PagedFakeRunner>(kVocabSize);
    runner->before_forward = [this](int) {
      if (const Engine* engine = running_.load()) {
        peak_query_bytes_ =
            std::max(peak_query_bytes_.load(), engine->stats().compression.query_bytes);
      }
      return true;
    };
    engine_ = Engine::create(options, std::move(runner), std::move(*kv), vocabulary_, nullptr,
                             nullptr, nullptr)
                  .value();
    running_ = engine_.get();
  }

  // The most bytes of queries that were kept in a step of the answer.
  std::int64_t query_bytes_of(int max_tokens) {
    peak_query_bytes_ = 0;
    Request request;
    request.prompt = {1, 2, 3};
    request.max_tokens = max_tokens;
    request.ignore_eos = true;
    std::promise<void> finished;
    const auto id = engine_->submit(std::move(request), [&](const GenerationEvent& event) {
      if (event.finished) {
        finished.set_value();
      }
    });
    EXPECT_TRUE(id.has_value());
    finished.get_future().wait();
    return peak_query_bytes_;
  }

  FakeVocabulary vocabulary_{kVocabSize};
  std::atomic<const Engine*> running_ = nullptr;
  std::atomic<std::int64_t> peak_query_bytes_ = 0;
  std::unique_ptr<Engine> engine_;
};

// The window has positions 16 to 80, and may be compressed when 8 tokens lie behind it.
TEST_F(EngineCompressQueries, AnAnswerThatEndsBeforeItsFirstWindowKeepsNone) {
  EXPECT_EQ(query_bytes_of(80), 0);
  EXPECT_GT(query_bytes_of(120), 0);
  EXPECT_EQ(query_bytes_of(60), 0);
}

// An 8B model: 32 layers, 8 KV heads of 128.
TEST(MostWindowOfRequest, TheQueriesOfAllSequencesFitTogether) {
  KVCacheSpec spec;
  spec.num_layers = 32;
  spec.num_kv_heads = 8;
  spec.head_dim = 128;
  const CompressionOptions own;  // 512 and 512
  const std::int64_t bytes_of_token = std::int64_t{32} * 8 * 128 * 2 / QueryRing::kStride;
  for (const int seqs : {1, 3, 16, 64}) {
    const int most = most_window_of_request(spec, own, seqs);
    EXPECT_EQ(most % kBlockSize, 0);
    EXPECT_LE((most + own.recent_tokens) * bytes_of_token * seqs, kMostQueryBytes);
    EXPECT_GT((most + kBlockSize + own.recent_tokens) * bytes_of_token * seqs, kMostQueryBytes);
  }
  EXPECT_EQ(most_window_of_request(spec, own, 64), 512);
  EXPECT_EQ(most_window_of_request(spec, own, 1000), 512) << "the server's own, whatever it takes";
  // Layers with a window keep none.
  spec.layer_windows.assign(32, 1024);
  spec.layer_windows[0] = spec.layer_windows[16] = 0;
  EXPECT_EQ(most_window_of_request(spec, own, 64), 16 * 1024 - 512);
}

TEST_F(EngineCompressQueries, AWindowWhoseQueriesCouldTakeTooMuchIsRefused) {
  // 16 bytes a token (two layers, one head of 16), so 1,024 tokens for each of 65,536 sequences.
  start(1 << 16);
  Request request;
  request.prompt = {1, 2, 3};
  request.max_tokens = 5;
  request.kv_compression.window_tokens = 1008;
  const auto refused = engine_->submit(request, [](const GenerationEvent&) {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.error().field(), "kv_compression.window");
  EXPECT_THAT(refused.error().message(),
              testing::StartsWith("kv_compression.window is 1008, allowed are multiples of 16 from "
                                  "32 to 992: the queries that 65536 sequences (max-num-seqs)"));
  request.kv_compression.window_tokens = 992;
  EXPECT_TRUE(engine_->submit(request, [](const GenerationEvent&) {}));
}

}  // namespace engine_compress_queries_test
}  // namespace karez::test
