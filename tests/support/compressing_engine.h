// Engines that compress aged windows, for tests: what a request answers depends on the request
// alone. The fake runner's tokens are a hash of all pairs that a row may see, at the places where
// they are, so one pair that is kept or dropped otherwise, too early or too late, changes every
// token after it.
//
// Thread: the test's; what an engine's thread writes is read after run().
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/block_loader.h"
#include "engine/engine.h"
#include "kv/tier/host_tier.h"
#include "kv/tier/throttled_tier.h"
#include "spec/ngram_proposer.h"
#include "support/answer_collector.h"
#include "support/fake_draft_proposer.h"
#include "support/fake_vocabulary.h"
#include "support/paged_fake_runner.h"

namespace karez::test {

class CompressingEngine : public testing::Test {
 public:
  enum class Drafts { kNone, kRight, kWrong, kMixed, kNgram };

 protected:
  static constexpr int kVocabSize = 40;
  static constexpr int kWithRoom = 3000;  // slots; invariants are checked over all of them
  static constexpr int kFullLayers = 3;

  // One layer with a window among layers without: two groups of blocks.
  static KVCacheSpec spec() { return PagedFakeRunner::kv_spec({0, 40, 0, 0}); }

  using Answer = CollectedAnswer;
  using Answers = AnswerCollector::Answers;

  static Request request(int prompt_tokens, int max_tokens, TokenId first, int num_choices = 1) {
    return fake_request(kVocabSize, prompt_tokens, max_tokens, first, num_choices);
  }

  // Short and long ones, some of several choices, with equal prompts, options of their own, or
  // without compression.
  static std::vector<Request> many_requests() {
    std::vector<Request> requests;
    for (int i = 0; i < 9; ++i) {
      requests.push_back(request(1 + i * 13, 150 + i * 17 % 90, 1 + i % 5, i % 4 == 3 ? 2 : 1));
    }
    requests[2].kv_compression.enabled = false;
    requests[4].kv_compression.keep = 0.25;
    requests[5].kv_compression.window_tokens = 32;
    requests[6].ignore_eos = false;
    requests.push_back(requests[8]);
    return requests;
  }

  CompressingEngine() {
    options_.context_tokens = 2000;
    options_.scheduler.max_num_batched_tokens = 64;
    options_.compress = true;
    options_.compression.window_tokens = 64;
    options_.compression.recent_tokens = 32;
    options_.compression.score = CompressScore::kRandom;
    options_.compression.archive = CompressArchive::kOff;
  }

  void start(std::int64_t num_slots, std::unique_ptr<Tier> home = nullptr,
             std::unique_ptr<Speculation> speculation = nullptr) {
    engine_.reset();
    const auto cap = static_cast<std::int64_t>(spec().slot_bytes()) * num_slots;
    auto kv = KVCacheManager::create(spec(), cap, std::move(home)).value();
    const bool has_home = kv->residency() != nullptr;
    auto loader = std::make_unique<BlockLoader>();
    auto runner = std::make_unique<PagedFakeRunner>(kVocabSize);
    runner->selection_listener = has_home ? loader.get() : nullptr;
    peak_slots_ = 0;
    slots_of_steps_.clear();
    runner->before_forward = [this, raw = kv.get()](int call) {
      const std::string problem = call % 8 == 0 ? raw->check_invariants() : "";
      EXPECT_EQ(problem, "");
      slots_of_steps_.push_back(raw->stats().slots_used);
      peak_slots_ = std::max(peak_slots_.load(), slots_of_steps_.back());
      return problem.empty();
    };
    engine_ = Engine::create(options_, std::move(runner), std::move(kv), vocabulary_, nullptr,
                             has_home ? std::move(loader) : nullptr, std::move(speculation))
                  .value();
  }

  Answers run(const std::vector<Request>& requests, bool with_aborts = false) {
    AnswerCollector open;
    AnswerCollector aborted;
    std::vector<RequestId> to_abort;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      if (with_aborts) {
        Request other = requests[i];
        other.max_tokens = 1500;
        to_abort.push_back(*engine_->submit(other, aborted.callback(i, other.num_choices)));
      }
      const auto id = engine_->submit(requests[i], open.callback(i, requests[i].num_choices));
      EXPECT_TRUE(id) << id.error().to_string();
      if (i % 2 == 1) {
        for (const RequestId other : std::exchange(to_abort, {})) {
          engine_->cancel(other);
        }
      }
    }
    Answers answers = open.wait();
    for (const RequestId other : to_abort) {
      engine_->cancel(other);
    }
    aborted.wait();
    return answers;
  }
  // Each alone, in a new engine with room for everything.
  Answers run_alone(const std::vector<Request>& requests) {
    Answers answers;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      start(kWithRoom);
      for (auto& [key, answer] : run({requests[i]})) {
        answers[{i, key.second}] = answer;
      }
      EXPECT_EQ(engine_->stats().slots_used, 0);
    }
    return answers;
  }
  // Of many_requests(), alone; they take a while.
  const Answers& answers_of_many() {
    static std::map<std::tuple<CompressArchive, CompressScore, int>, Answers> answers;
    const CompressionOptions& options = options_.compression;
    const std::tuple key(options.archive, options.score, options.recent_tokens);
    if (!answers.contains(key)) {
      answers[key] = run_alone(many_requests());
    }
    return answers.at(key);
  }
  static void expect_same(const Answers& seen, const Answers& wanted) {
    ASSERT_EQ(seen.size(), wanted.size());
    for (const auto& [key, answer] : wanted) {
      SCOPED_TRACE("request " + std::to_string(key.first) + ", choice " +
                   std::to_string(key.second));
      const Answer& other = seen.at(key);
      EXPECT_EQ(other.last.finished, answer.last.finished);
      ASSERT_EQ(other.tokens.size(), answer.tokens.size());
      EXPECT_EQ(std::ranges::mismatch(other.tokens, answer.tokens).in1 - other.tokens.begin(),
                std::ssize(answer.tokens))
          << "the first token that differs";
    }
  }

  std::unique_ptr<Tier> host_tier(int num_slots, bool throttled) const {
    const auto slot_bytes = static_cast<std::int64_t>(spec().slot_bytes());
    auto tier = HostTier::create({.block_bytes = spec().slot_bytes(),
                                  .capacity_bytes = num_slots * slot_bytes,
                                  .num_workers = throttled ? 0 : 1})
                    .value();
    if (!throttled) {
      return tier;
    }
    return std::make_unique<ThrottledTier>(
        std::move(tier),
        Throttle{.bytes_per_second = 256 << 20, .latency = std::chrono::microseconds(20)});
  }
  // Drafts that know the answers, or do not.
  std::unique_ptr<Speculation> speculation(Drafts kind, const std::vector<Request>& requests,
                                           const Answers& wanted) const {
    if (kind == Drafts::kNone) {
      return nullptr;
    }
    const SpeculationOptions options{.max_drafts = 6, .min_drafts = 6};
    if (kind == Drafts::kNgram) {
      return std::make_unique<Speculation>(
          options, std::make_unique<NgramProposer>(NgramOptions{.min_match = 1}));
    }
    auto random = std::make_shared<std::mt19937>(5);
    const auto guess = [random, kind, &requests, &wanted](const DraftQuery& query) {
      std::vector<TokenId> drafts(static_cast<std::size_t>(query.max_drafts));
      for (TokenId& draft : drafts) {
        draft = static_cast<TokenId>((*random)() % kVocabSize);
      }
      if (kind == Drafts::kWrong || (kind == Drafts::kMixed && (*random)() % 2 == 0)) {
        return drafts;
      }
      for (const auto& [key, answer] : wanted) {
        std::vector<TokenId> all = requests[key.first].prompt;
        all.insert(all.end(), answer.tokens.begin(), answer.tokens.end());
        if (all.size() > query.tokens.size() &&
            std::equal(query.tokens.begin(), query.tokens.end(), all.begin())) {
          const auto next = all.begin() + std::ssize(query.tokens);
          drafts.assign(next, next + std::min<std::ptrdiff_t>(query.max_drafts, all.end() - next));
          break;
        }
      }
      return drafts;
    };
    return std::make_unique<Speculation>(options, std::make_unique<FakeDraftProposer>(guess));
  }
  // Windows of a request that is alone, before its last step.
  int windows_of(const Request& request) const {
    CompressionOptions options = options_.compression;
    options.keep = request.kv_compression.keep.value_or(options.keep);
    options.window_tokens = request.kv_compression.window_tokens.value_or(options.window_tokens);
    const CompressionSchedule schedule =
        schedule_of(options, static_cast<int>(request.prompt.size()), kBlockSize, 0);
    int windows = 0;
    while (schedule.publication_of(windows) <=
           std::ssize(request.prompt) + request.max_tokens - 2) {
      ++windows;
    }
    return windows;
  }

  FakeVocabulary vocabulary_{kVocabSize};
  EngineOptions options_;
  std::atomic<std::int64_t> peak_slots_ = 0;  // in use at the start of a step
  std::vector<std::int64_t> slots_of_steps_;  // the same of all steps since start()
  std::unique_ptr<Engine> engine_;
};

}  // namespace karez::test
