// The flag's text, and engines with a small model that wait, or do not, for what their rows select.
#include "engine/on_miss.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/attached_key_index.h"
#include "engine/engine.h"
#include "kv/tier/host_tier.h"
#include "model/ggml_model_runner.h"
#include "support/fake_vocabulary.h"
#include "support/random_model.h"
#include "support/temporary_file.h"

namespace karez {
namespace on_miss_test {

using test::FakeVocabulary;
using test::TemporaryFile;

TEST(OnMiss, IsReadAndWritten) {
  EXPECT_EQ(parse_on_miss("wait")->bound, std::nullopt);
  EXPECT_EQ(parse_on_miss("bounded=0")->bound, 0);
  EXPECT_EQ(parse_on_miss("bounded=16777216")->bound, 1 << 24);
  for (const char* text : {"wait", "bounded=0", "bounded=37"}) {
    EXPECT_EQ(to_string(*parse_on_miss(text)), text);
  }
}

TEST(OnMiss, OtherTextIsRefusedByName) {
  for (const char* text : {"", "Wait", "bounded", "bounded=", "bounded=-1", "bounded=1x",
                           "bounded= 1", "bounded=16777217", "bounded=99999999999999999999"}) {
    const auto parsed = parse_on_miss(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_EQ(parsed.error().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(parsed.error().message(),
                testing::AllOf(testing::HasSubstr(std::string("'") + text + "'"),
                               testing::HasSubstr("bounded=N")));
  }
}

struct Answer {
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;
  GenerationEvent last;
  EngineStats stats;
};

constexpr int kPromptTokens = 400;
constexpr int kAnswerTokens = 24;

// One request. fast_slots: of one block of a layer and KV head each; 0: no home tier, and room for
// all.
Answer answer_of(const std::string& model, int fast_slots, const OnMiss& on_miss) {
  SparseOptions sparse;
  sparse.token_budget = 128;
  sparse.recent_window = 16;
  sparse.list_masses = on_miss.bound.has_value();
  auto loader = std::make_unique<BlockLoader>(on_miss);
  auto runner =
      load_model(model, {.num_threads = 2, .sparse = sparse, .selection_listener = loader.get()})
          .value();
  const KVCacheSpec spec = runner->config().kv_cache_spec(KvType::kBf16);
  const auto slot = static_cast<std::int64_t>(spec.slot_bytes());
  std::unique_ptr<Tier> home;
  if (fast_slots > 0) {
    home = HostTier::create(
               {.block_bytes = spec.slot_bytes(), .capacity_bytes = 4000 * slot, .num_workers = 0})
               .value();
  }
  const std::int64_t slots = fast_slots > 0 ? fast_slots : 4000;
  auto kv = KVCacheManager::create(spec, slots * slot, std::move(home)).value();
  auto index = attach_key_index(*kv, sparse).value();
  EngineOptions options;
  options.context_tokens = 2000;
  options.prefix_cache = false;
  options.scheduler.max_num_batched_tokens = 64;
  const int vocab_size = runner->config().vocab_size;
  const FakeVocabulary vocabulary(vocab_size);
  auto engine = Engine::create(options, std::move(runner), std::move(kv), vocabulary,
                               std::move(index), std::move(loader))
                    .value();
  Answer answer;
  std::mutex mutex;
  std::condition_variable changed;
  Request request;
  for (int t = 0; t < kPromptTokens; ++t) {
    request.prompt.push_back(static_cast<TokenId>((t * t * 7 + t * 13) % (vocab_size - 10) + 5));
  }
  request.max_tokens = kAnswerTokens;
  request.ignore_eos = true;
  request.num_logprobs = 0;
  const auto submitted = engine->submit(request, [&](const GenerationEvent& event) {
    const std::lock_guard lock(mutex);
    for (const GeneratedToken& token : event.tokens) {
      answer.tokens.push_back(token.chosen.token);
      answer.logprobs.push_back(token.chosen.logprob);
    }
    answer.last = event;
    changed.notify_all();
  });
  EXPECT_TRUE(submitted) << submitted.error().to_string();
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return answer.last.finished.has_value(); });
  }
  engine->shutdown(std::chrono::milliseconds(0));
  answer.stats = engine->stats();
  return answer;
}

class OnMissEngine : public testing::Test {
 protected:
  OnMissEngine() { test::random_model({.num_layers = 3}).write(file_.path()); }
  Answer run(int fast_slots, const OnMiss& on_miss) const {
    Answer answer = answer_of(file_.path(), fast_slots, on_miss);
    EXPECT_EQ(answer.tokens.size(), std::size_t{kAnswerTokens});
    EXPECT_EQ(answer.last.finished, FinishReason::kLength);
    return answer;
  }
  static void expect_same(const Answer& a, const Answer& b) {
    EXPECT_EQ(a.tokens, b.tokens);
    EXPECT_EQ(a.logprobs, b.logprobs);
  }

  TemporaryFile file_{"on_miss.gguf"};
};

// 424 tokens take 27 blocks in each of 3 layers and 2 KV heads: 162 slots.
constexpr int kRoomForAll = 500;
constexpr int kTight = 100;

TEST_F(OnMissEngine, WaitingAndABoundThatIsNeverReachedGiveTheSameBits) {
  const Answer waited = run(kTight, {});
  EXPECT_GT(waited.last.kv_blocks_loaded, 0);
  EXPECT_EQ(waited.stats.missed.num_lists, 0);
  EXPECT_EQ(waited.last.kv_missed.num_lists, 0);
  const Answer bounded = run(kTight, OnMiss{1000});
  expect_same(bounded, waited);
  EXPECT_EQ(bounded.last.kv_blocks_loaded, waited.last.kv_blocks_loaded);
  EXPECT_EQ(bounded.last.kv_missed.num_lists, (kAnswerTokens - 1) * 3 * 2);
  EXPECT_EQ(bounded.last.kv_missed.blocks_skipped, 0);
}

TEST_F(OnMissEngine, ABoundOverWhatIsThereGivesTheBitsOfAStoreWithoutTiers) {
  const Answer bounded = run(kRoomForAll, OnMiss{0});
  expect_same(bounded, run(0, {}));
  EXPECT_EQ(bounded.last.kv_missed.num_lists, (kAnswerTokens - 1) * 3 * 2);
  EXPECT_EQ(bounded.last.kv_missed.blocks_skipped, 0);
  EXPECT_EQ(bounded.last.kv_missed.sum, 0);
}

TEST_F(OnMissEngine, WhatABoundLeavesOutIsCountedForTheRequestAndTheEngine) {
  const Answer waited = run(kTight, {});
  for (const int bound : {0, 3}) {
    const Answer bounded = run(kTight, OnMiss{bound});
    EXPECT_NE(bounded.logprobs, waited.logprobs);
    const MissedMass& missed = bounded.last.kv_missed;
    EXPECT_EQ(missed.num_lists, (kAnswerTokens - 1) * 3 * 2);
    EXPECT_GT(missed.sum, 0);
    EXPECT_GE(missed.worst, missed.mean());
    EXPECT_LE(missed.worst, 1);
    EXPECT_GT(missed.blocks_skipped, 0);
    EXPECT_EQ(bounded.stats.missed.num_lists, missed.num_lists);
    EXPECT_EQ(bounded.stats.missed.blocks_skipped, missed.blocks_skipped);
    EXPECT_EQ(bounded.stats.missed.sum, missed.sum);
    EXPECT_EQ(bounded.stats.missed.worst, missed.worst);
    if (bound == 0) {  // only the prompt loads
      EXPECT_LT(bounded.last.kv_blocks_loaded, waited.last.kv_blocks_loaded);
    }
  }
}

}  // namespace on_miss_test
}  // namespace karez
