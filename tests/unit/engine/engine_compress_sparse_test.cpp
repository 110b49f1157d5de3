// Compression of an answer's own windows beside sparse selection and a home tier, with a small
// random model: what is kept and what is archived is selected from, wherever it is, and the answer
// is the one of the request alone.
//
// With f32 weights and f32 KV. Even so the order of sums differs with the rows of a step, so a
// token may differ where the two best are as good as equal; the comparison ends there.
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/attached_key_index.h"
#include "engine/block_loader.h"
#include "engine/engine.h"
#include "engine/home_tier.h"
#include "engine/on_miss.h"
#include "kv/tier/host_tier.h"
#include "model/ggml_model_runner.h"
#include "support/fake_vocabulary.h"
#include "support/random_model.h"
#include "support/temporary_file.h"

namespace karez {
namespace engine_compress_sparse_test {

constexpr int kLayers = 3;
constexpr int kHeads = 2;
constexpr int kAnswerTokens = 150;
constexpr int kWindow = 64;
constexpr int kWindows = 2;        // that an answer of 150 tokens has behind it
constexpr float kNearTie = 0.02F;  // of two log probabilities

// Slots are of one block of a layer and KV head. The four requests take 180, 150, 90 and 210
// without compression; a row that selects reads less.
constexpr int kRoomForAll = 1000;
constexpr int kRoomForOne = 240;
constexpr int kLessThanOne = 110;

struct Answer {
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;
  std::vector<float> leads;  // of the best token over the second
  GenerationEvent last;
};

struct Way {
  int slots = kRoomForAll;
  bool has_home = false;  // with room for everything
  int batched_tokens = 64;
  bool prefix_cache = false;
  OnMiss on_miss = {};
};

class EngineCompressSparse : public testing::TestWithParam<CompressArchive> {
 protected:
  EngineCompressSparse() { test::random_model({.num_layers = kLayers}).write(file_.path()); }

  std::vector<Answer> run(const std::vector<Request>& requests, const Way& way) {
    SparseOptions sparse;
    sparse.token_budget = 192;
    sparse.recent_window = 64;
    sparse.list_masses = way.on_miss.bound.has_value();
    auto loader = std::make_unique<BlockLoader>(way.on_miss);
    auto runner = load_model(file_.path(), {.num_threads = 1,
                                            .kv_type = KvType::kF32,
                                            .sparse = sparse,
                                            .selection_listener = loader.get()})
                      .value();
    const KVCacheSpec spec = runner->config().kv_cache_spec(KvType::kF32);
    const auto slot_bytes = static_cast<std::int64_t>(spec.slot_bytes());
    EngineOptions options;
    options.context_tokens = 1000;
    options.prefix_cache = way.prefix_cache;
    options.scheduler.max_num_batched_tokens = way.batched_tokens;
    options.scheduler.max_dense_tokens = sparse.token_budget;
    options.compress = compresses_;
    options.compression.window_tokens = kWindow;
    options.compression.recent_tokens = 0;  // then no window is ever compressed earlier
    options.compression.archive = GetParam();
    std::unique_ptr<Tier> home;
    if (way.has_home) {
      home = HostTier::create({.block_bytes = spec.slot_bytes(),
                               .capacity_bytes = 4000 * slot_bytes,
                               .num_workers = 0})
                 .value();
      // As much as a row reads of one layer and no more, so that several run together.
      options.scheduler.decode_floor_tokens = 96;
      options.scheduler.decode_read_tokens = decode_read_tokens(sparse, spec);
    }
    auto kv = KVCacheManager::create(spec, way.slots * slot_bytes, std::move(home)).value();
    auto index = attach_key_index(*kv, sparse).value();
    const test::FakeVocabulary vocabulary(runner->config().vocab_size);
    const auto engine = Engine::create(options, std::move(runner), std::move(kv), vocabulary,
                                       std::move(index), std::move(loader))
                            .value();
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<Answer> answers(requests.size());
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const auto id = engine->submit(requests[i], [&, i](const GenerationEvent& event) {
        const std::lock_guard lock(mutex);
        for (const GeneratedToken& token : event.tokens) {
          answers[i].tokens.push_back(token.chosen.token);
          answers[i].logprobs.push_back(token.chosen.logprob);
          answers[i].leads.push_back(token.alternatives[0].logprob - token.alternatives[1].logprob);
        }
        answers[i].last = event;
        changed.notify_all();
      });
      EXPECT_TRUE(id) << id.error().to_string();
    }
    {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] {
        return std::ranges::all_of(
            answers, [](const Answer& answer) { return answer.last.finished.has_value(); });
      });
    }
    engine->shutdown(std::chrono::milliseconds(0));
    stats_ = engine->stats();
    EXPECT_EQ(stats_.slots_used, 0);
    return answers;
  }
  Answer run_one(const Request& request, const Way& way) { return run({request}, way).front(); }

  static Request request(int prompt_tokens, int first) {
    Request request;
    for (int t = first; t < first + prompt_tokens; ++t) {
      request.prompt.push_back(static_cast<TokenId>((t * t * 7 + t * 13) % 500 + 5));
    }
    request.max_tokens = kAnswerTokens;
    request.ignore_eos = true;
    request.num_logprobs = 2;
    return request;
  }
  static std::vector<Request> four_requests() {
    return {request(320, 0), request(250, 500), request(90, 900), request(400, 0)};
  }
  // Windows of answers alone: prompts are left as they are.
  void expect_windows_at_least(int windows) const {
    const CompressionStats& compression = stats_.compression;
    EXPECT_GE(compression.windows, windows);
    EXPECT_EQ(compression.pairs_kept, compression.windows * kWindow / 2 * kLayers * kHeads);
    if (GetParam() == CompressArchive::kR4) {
      EXPECT_EQ(compression.pairs_archived, compression.pairs_kept);
      EXPECT_EQ(compression.pairs_dropped, 0);
      EXPECT_GT(compression.pairs_brought_back, 0);
    } else {
      EXPECT_EQ(compression.pairs_archived, 0);
      EXPECT_EQ(compression.pairs_dropped, compression.pairs_kept);
      EXPECT_EQ(compression.pairs_brought_back, 0);
    }
  }
  static void expect_same(const Answer& answer, const Answer& alone) {
    ASSERT_EQ(alone.tokens.size(), std::size_t{kAnswerTokens});
    ASSERT_EQ(answer.tokens.size(), alone.tokens.size());
    const auto differs = std::ranges::mismatch(answer.tokens, alone.tokens).in1;
    if (differs != answer.tokens.end()) {
      const auto at = static_cast<std::size_t>(differs - answer.tokens.begin());
      EXPECT_LE(alone.leads[at], kNearTie) << "token " << at;
    }
  }
  static void expect_same_bits(const Answer& answer, const Answer& wanted) {
    EXPECT_EQ(answer.tokens, wanted.tokens);
    EXPECT_EQ(answer.logprobs, wanted.logprobs);
  }

  test::TemporaryFile file_{"compress_sparse.gguf"};
  bool compresses_ = true;
  EngineStats stats_;  // after the last run()
};

TEST_P(EngineCompressSparse, AnAnswerIsTheSameHoweverItWasRun) {
  const std::vector<Request> requests = four_requests();
  std::vector<Answer> alone;
  for (const Request& one : requests) {
    alone.push_back(run_one(one, {}));
    expect_windows_at_least(kWindows);
    EXPECT_EQ(stats_.compression.windows, kWindows);
    EXPECT_EQ(stats_.preemptions, 0);
  }
  const auto expect_all_same = [&](const Way& way) {
    const std::vector<Answer> answers = run(requests, way);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      SCOPED_TRACE(i);
      expect_same(answers[i], alone[i]);
    }
    expect_windows_at_least(kWindows * static_cast<int>(requests.size()));
  };
  {
    SCOPED_TRACE("resident");
    expect_all_same({.batched_tokens = 512, .prefix_cache = true});
    EXPECT_EQ(stats_.preemptions, 0);
  }
  {
    SCOPED_TRACE("home");
    expect_all_same({.slots = kRoomForOne, .has_home = true});
    EXPECT_GT(stats_.tiers.evictions, 0);
  }
  {
    SCOPED_TRACE("preempted");
    expect_all_same({.slots = kRoomForOne});
    EXPECT_GT(stats_.preemptions, 0);
  }
}

TEST_P(EngineCompressSparse, WhereBlocksAndPagesAreChangesNoBit) {
  const Request one = request(400, 0);
  const Answer resident = run_one(one, {});
  const Answer tiered = run_one(one, {.slots = kLessThanOne, .has_home = true});
  EXPECT_GT(stats_.tiers.demand_misses, 0);
  expect_windows_at_least(kWindows);
  expect_same_bits(tiered, resident);
  compresses_ = false;
  EXPECT_NE(run_one(one, {}).logprobs, resident.logprobs);
  EXPECT_EQ(stats_.compression.windows, 0);
}

// A bound that is never reached changes no bit; one of 0 leaves out what is not there, of archived
// pages too, and waits for what compression itself reads.
TEST_P(EngineCompressSparse, RowsMayGoWithoutWhatIsNotThere) {
  const Request one = request(400, 0);
  Way way{.slots = kLessThanOne, .has_home = true};
  const Answer waited = run_one(one, way);
  EXPECT_EQ(stats_.missed.num_lists, 0);
  way.on_miss = OnMiss{1000};
  expect_same_bits(run_one(one, way), waited);
  EXPECT_GT(stats_.missed.num_lists, 0);
  EXPECT_EQ(stats_.missed.blocks_skipped, 0);
  way.on_miss = OnMiss{0};
  const Answer bounded = run_one(one, way);
  EXPECT_EQ(bounded.tokens.size(), std::size_t{kAnswerTokens});
  EXPECT_EQ(bounded.last.finished, FinishReason::kLength);
  EXPECT_GT(stats_.missed.blocks_skipped, 0);
  EXPECT_EQ(stats_.compression.windows, kWindows);
  EXPECT_EQ(stats_.compression.pairs_kept, kWindows * kWindow / 2 * kLayers * kHeads);
}

INSTANTIATE_TEST_SUITE_P(Archives, EngineCompressSparse,
                         testing::Values(CompressArchive::kR4, CompressArchive::kOff),
                         [](const auto& archive) {
                           return archive.param == CompressArchive::kR4 ? "R4" : "Off";
                         });

}  // namespace engine_compress_sparse_test
}  // namespace karez
