// Which answers keep queries for compression.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <memory>
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
  EngineCompressQueries() {
    EngineOptions options;
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
  ~EngineCompressQueries() override { running_ = nullptr; }

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

}  // namespace engine_compress_queries_test
}  // namespace karez::test
