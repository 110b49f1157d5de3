#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kv/kv_types.h"
#include "support/fake_vocabulary.h"
#include "support/gate.h"
#include "support/paged_fake_runner.h"

namespace karez::test {
namespace engine_test {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr int kVocabSize = 40;

// Collects the events of one request; wait() returns when all its choices have ended.
class Collector {
 public:
  explicit Collector(int num_choices = 1) : num_open_(num_choices) {}

  EngineClient::Callback callback() {
    return [this](const GenerationEvent& event) {
      const std::lock_guard lock(mutex_);
      Answer& answer = answers_[event.choice];
      answer.text += event.text;
      for (const GeneratedToken& token : event.tokens) {
        answer.tokens.push_back(token.chosen.token);
      }
      answer.last = event;
      num_open_ -= event.finished ? 1 : 0;
      changed_.notify_all();
    };
  }

  struct Answer {
    std::string text;
    std::vector<TokenId> tokens;
    GenerationEvent last;
  };
  std::map<int, Answer> wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return num_open_ <= 0; });
    EXPECT_EQ(num_open_, 0) << "each choice ends once";
    return answers_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, Answer> answers_;
  int num_open_;
};

class EngineTest : public testing::Test {
 protected:
  EngineTest() { options_.context_tokens = 200; }

  void start(int num_slots = 200) {
    const KVCacheSpec spec = PagedFakeRunner::kv_spec({40, 0});
    const auto cap = static_cast<std::int64_t>(spec.slot_bytes()) * num_slots;
    auto runner = std::make_unique<PagedFakeRunner>(kVocabSize);
    runner->before_forward = before_forward_;
    auto engine = Engine::create(options_, std::move(runner),
                                 std::move(KVCacheManager::create(spec, cap).value()), vocabulary_);
    ASSERT_TRUE(engine);
    engine_ = std::move(*engine);
  }
  static Request request(int prompt_tokens, int max_tokens, TokenId first = 1) {
    Request request;
    for (int i = 0; i < prompt_tokens; ++i) {
      request.prompt.push_back((first + i * 7) % kVocabSize);
    }
    request.max_tokens = max_tokens;
    request.ignore_eos = true;
    return request;
  }
  Collector::Answer run(const Request& request) {
    Collector collector;
    EXPECT_TRUE(engine_->submit(request, collector.callback()));
    return collector.wait()[0];
  }

  FakeVocabulary vocabulary_{kVocabSize};
  EngineOptions options_;
  std::function<bool(int)> before_forward_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineTest, AnswersAndSaysWhatItCost) {
  options_.scheduler.max_num_batched_tokens = 16;
  start();
  const auto first = run(request(50, 10));
  EXPECT_EQ(first.tokens.size(), 10U);
  EXPECT_EQ(first.text.size(), 10U - static_cast<std::size_t>(std::ranges::count(first.tokens, 0)));
  EXPECT_EQ(first.last.finished, FinishReason::kLength);
  EXPECT_EQ(first.last.prompt_tokens, 50);
  EXPECT_EQ(first.last.cached_tokens, 0);
  EXPECT_EQ(first.last.generated_tokens, 10);
  const auto second = run(request(50, 10));
  EXPECT_EQ(second.tokens, first.tokens);
  EXPECT_EQ(second.last.cached_tokens, 48);
  const EngineStats stats = engine_->stats();
  EXPECT_EQ(stats.requests_running, 0);
  EXPECT_EQ(stats.requests_waiting, 0);
  EXPECT_EQ(stats.slots_used, 0);
  EXPECT_GT(stats.slots_idle, 0);  // what the second one found
  EXPECT_EQ(stats.slots_total, 200);
  EXPECT_EQ(stats.prompt_tokens, 100);
  EXPECT_EQ(stats.generated_tokens, 20);
  EXPECT_EQ(stats.prefix_cache_queries_tokens, 100);
  EXPECT_EQ(stats.prefix_cache_hits_tokens, 48);
  EXPECT_EQ(stats.steps, 4 + 9 + 1 + 9);
}

// Chunk sizes, pools, sharing and hashes must not be seen in an answer. Cases B3, B5.
TEST_F(EngineTest, TheAnswerDoesNotDependOnHowItWasRun) {
  std::vector<std::vector<TokenId>> alone;
  std::vector<Request> requests;
  for (const int length : {1, 15, 16, 17, 32, 33, 100, 100, 100, 100}) {
    requests.push_back(request(length, 20));
  }
  options_.prefix_cache = false;
  start();
  for (const Request& one : requests) {
    alone.push_back(run(one).tokens);
  }
  struct Way {
    int batched_tokens;
    int num_slots;
    bool prefix_cache;
    int hash_bits;
  };
  for (const Way& way : {Way{512, 200, true, 128}, Way{7, 200, true, 128}, Way{32, 26, true, 128},
                         Way{32, 26, true, 2}, Way{32, 26, false, 128}, Way{1, 16, true, 8}}) {
    options_.scheduler.max_num_batched_tokens = way.batched_tokens;
    options_.prefix_cache = way.prefix_cache;
    options_.prefix_hash_bits = way.hash_bits;
    start(way.num_slots);
    std::vector<std::unique_ptr<Collector>> collectors;
    for (const Request& one : requests) {
      collectors.push_back(std::make_unique<Collector>());
      ASSERT_TRUE(engine_->submit(one, collectors.back()->callback()));
    }
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const auto answer = collectors[i]->wait()[0];
      EXPECT_EQ(answer.tokens, alone[i]) << i << " with " << way.num_slots << " slots";
      EXPECT_EQ(answer.last.finished, FinishReason::kLength);
    }
    EXPECT_EQ(engine_->stats().slots_used, 0);
  }
}

TEST_F(EngineTest, RunsSeveralChoices) {
  start();
  Request several = request(40, 12);
  several.num_choices = 3;
  Collector collector(3);
  ASSERT_TRUE(engine_->submit(several, collector.callback()));
  const auto answers = collector.wait();
  ASSERT_EQ(answers.size(), 3U);
  EXPECT_EQ(answers.at(0).tokens, answers.at(2).tokens) << "the sampler is greedy";
  EXPECT_EQ(engine_->stats().prompt_tokens, 40);
  EXPECT_EQ(engine_->stats().generated_tokens, 36);
}

// Keeps the seeds of the samplers that were asked for. One thread submits.
class SeedRecorder final : public Vocabulary {
 public:
  int size() const override { return fake_.size(); }
  std::string piece(TokenId token) const override { return fake_.piece(token); }
  std::span<const TokenId> end_tokens() const override { return fake_.end_tokens(); }
  Expected<std::unique_ptr<Sampler>> make_sampler(const SamplingParams& params) const override {
    seeds_.push_back(params.seed);
    return fake_.make_sampler(params);
  }
  std::vector<std::uint32_t> take_seeds() const { return std::exchange(seeds_, {}); }

 private:
  FakeVocabulary fake_{kVocabSize};
  mutable std::vector<std::uint32_t> seeds_;
};

TEST_F(EngineTest, SeedsOfChoicesDifferAndNoneBecomesRandom) {
  const KVCacheSpec spec = PagedFakeRunner::kv_spec({40, 0});
  const SeedRecorder recorder;
  auto engine = Engine::create(
      options_, std::make_unique<PagedFakeRunner>(kVocabSize),
      std::move(
          KVCacheManager::create(spec, static_cast<std::int64_t>(spec.slot_bytes()) * 200).value()),
      recorder);
  ASSERT_TRUE(engine);
  const auto seeds_of = [&](std::uint32_t seed, int num_choices) {
    Request several = request(10, 1);
    several.num_choices = num_choices;
    several.sampling.seed = seed;
    Collector collector(num_choices);
    EXPECT_TRUE((*engine)->submit(several, collector.callback()));
    collector.wait();
    return recorder.take_seeds();
  };
  using Seeds = std::vector<std::uint32_t>;
  EXPECT_EQ(seeds_of(7, 3), (Seeds{7, 8, 9}));
  EXPECT_EQ(seeds_of(0xFFFFFFFD, 4), (Seeds{0xFFFFFFFD, 0xFFFFFFFE, 0, 1}));
  EXPECT_EQ(seeds_of(0xFFFFFFFF, 2), (Seeds{0xFFFFFFFF, 0xFFFFFFFF})) << "random ones";
}

TEST_F(EngineTest, EndsWithLengthWhenTheFastTierIsFull) {
  start(/*num_slots=*/8);  // windows of 40 tokens take four blocks at most, so 64 tokens fit
  const auto answer = run(request(30, 150));
  EXPECT_EQ(answer.last.finished, FinishReason::kLength);
  EXPECT_LT(answer.tokens.size(), 150U);
  EXPECT_GT(answer.tokens.size(), 30U);
  EXPECT_EQ(engine_->stats().slots_used, 0);
}

TEST_F(EngineTest, RefusesWhatItCannotRun) {
  start(/*num_slots=*/8);
  const auto refused = [&](const Request& bad) {
    auto result = engine_->submit(bad, [](const GenerationEvent&) { FAIL(); });
    EXPECT_FALSE(result);
    return result ? Status(StatusCode::kInternal, "") : result.error();
  };
  const Status too_long = refused(request(200, 1));
  EXPECT_EQ(too_long.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(too_long.field(), "prompt");
  const Status too_large = refused(request(150, 1));
  EXPECT_EQ(too_large.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(too_large.field(), "prompt");
  Request bad = request(5, 1);
  bad.sampling.grammar = "bad";
  EXPECT_THAT(refused(bad).message(), HasSubstr("grammar"));
  EXPECT_EQ(refused(bad).field(), "grammar");
}

TEST_F(EngineTest, CancelsInEveryPhase) {
  Gate submitting;
  Gate cancelling;
  before_forward_ = [&](int call) {
    if (call == 1) {
      submitting.pass();
    } else if (call == 3) {
      cancelling.pass();
    }
    return true;
  };
  options_.scheduler.max_num_seqs = 2;
  options_.scheduler.max_num_batched_tokens = 8;
  start();
  Collector decoding;
  Collector in_prompt;
  Collector waiting;
  const auto a = engine_->submit(request(4, 100), decoding.callback());
  submitting.wait_until_held();  // it has its first token
  const auto b = engine_->submit(request(90, 100, 2), in_prompt.callback());
  const auto c = engine_->submit(request(4, 100, 3), waiting.callback());
  submitting.open();
  cancelling.wait_until_held();
  EXPECT_EQ(engine_->stats().requests_running, 2);
  EXPECT_EQ(engine_->stats().requests_waiting, 1);
  engine_->cancel(*a);
  engine_->cancel(*b);
  engine_->cancel(*c);
  engine_->cancel(12345);
  cancelling.open();
  EXPECT_EQ(decoding.wait()[0].tokens.size(), 4U) << "of calls 0 to 3";
  for (Collector* collector : {&in_prompt, &waiting}) {
    EXPECT_TRUE(collector->wait()[0].tokens.empty());
  }
  for (Collector* collector : {&decoding, &in_prompt, &waiting}) {
    EXPECT_EQ(collector->wait()[0].last.finished, FinishReason::kCancelled);
  }
  EXPECT_EQ(run(request(5, 3)).tokens.size(), 3U);
  EXPECT_EQ(engine_->stats().slots_used, 0);
  EXPECT_EQ(engine_->stats().requests_waiting, 0);
}

TEST_F(EngineTest, AFailedStepEndsItsRequestsAndNothingElse) {
  before_forward_ = [](int call) { return call != 0; };
  start();
  const auto failed = run(request(4, 5));
  EXPECT_EQ(failed.last.finished, FinishReason::kError);
  ASSERT_TRUE(failed.last.error);
  EXPECT_THAT(failed.last.error->message(), HasSubstr("told to fail"));
  EXPECT_EQ(run(request(4, 5)).last.finished, FinishReason::kLength);
  EXPECT_EQ(engine_->stats().slots_used, 0);
}

TEST_F(EngineTest, RefusesMoreThanTheQueueHolds) {
  Gate gate;
  before_forward_ = [&](int call) {
    if (call == 0) {
      gate.pass();
    }
    return true;
  };
  options_.max_queue = 2;
  start();
  std::vector<std::unique_ptr<Collector>> collectors;
  const auto submit = [&] {
    collectors.push_back(std::make_unique<Collector>());
    return engine_->submit(request(4, 2), collectors.back()->callback());
  };
  ASSERT_TRUE(submit());
  gate.wait_until_held();  // the first one runs
  ASSERT_TRUE(submit());
  ASSERT_TRUE(submit());
  EXPECT_EQ(engine_->stats().requests_running, 1);
  EXPECT_EQ(engine_->stats().requests_waiting, 2);
  const auto refused = submit();
  const auto looked = engine_->check_queue();
  Request bad = request(4, 2);
  bad.sampling.grammar = "bad";
  const auto unread = engine_->submit(bad, {});
  gate.open();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), StatusCode::kUnavailable);
  EXPECT_THAT(refused.error().message(), HasSubstr("max-queue"));
  ASSERT_FALSE(looked);
  EXPECT_EQ(looked.error().to_string(), refused.error().to_string());
  ASSERT_FALSE(unread);
  EXPECT_EQ(unread.error().code(), StatusCode::kUnavailable) << "its grammar is not read";
  collectors.pop_back();
  for (auto& collector : collectors) {
    collector->wait();
  }
  EXPECT_TRUE(engine_->check_queue());
}

TEST_F(EngineTest, ShutdownLetsRequestsFinish) {
  start();
  Collector collector;
  ASSERT_TRUE(engine_->submit(request(100, 50), collector.callback()));
  engine_->shutdown(std::chrono::hours(1));
  EXPECT_EQ(collector.wait()[0].last.finished, FinishReason::kLength);
  const auto refused = engine_->submit(request(4, 2), {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), StatusCode::kUnavailable);
}

TEST_F(EngineTest, ShutdownCancelsAtItsDeadline) {
  Gate gate;
  before_forward_ = [&](int call) {
    if (call == 2) {
      gate.pass();
    }
    return true;
  };
  start();
  Collector running;
  Collector queued;
  ASSERT_TRUE(engine_->submit(request(10, 150), running.callback()));
  gate.wait_until_held();
  ASSERT_TRUE(engine_->submit(request(10, 150), queued.callback()));
  std::thread closer([&] { engine_->shutdown(milliseconds(0)); });
  // Refusals tell that the shutdown has begun; only then may the engine go on.
  while (engine_->submit(request(10, 1), [](const GenerationEvent&) {})) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  gate.open();
  EXPECT_EQ(running.wait()[0].last.finished, FinishReason::kCancelled);
  EXPECT_EQ(queued.wait()[0].last.finished, FinishReason::kCancelled);
  closer.join();
}

TEST_F(EngineTest, ReportsTheTimesOfItsClock) {
  std::atomic<int> seconds = 100;
  options_.clock = [&] { return static_cast<double>(seconds.load()); };
  before_forward_ = [&](int call) {
    seconds += call == 0 ? 3 : 1;
    return true;
  };
  start();
  const auto timings = run(request(4, 3)).last.timings;
  EXPECT_EQ(timings.queue_seconds, 0);
  EXPECT_EQ(timings.prefill_seconds, 3);
  EXPECT_EQ(timings.decode_seconds, 2);
  EXPECT_EQ(engine_->stats().forward_seconds, 5);
}

TEST_F(EngineTest, ServesManyThreadsThatSubmitAndCancel) {
  options_.scheduler.max_num_seqs = 4;
  options_.scheduler.max_num_batched_tokens = 32;
  start(/*num_slots=*/60);
  const auto alone = run(request(40, 20)).tokens;
  std::vector<std::thread> threads;
  std::atomic<int> finished = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        Collector collector;
        const auto id = engine_->submit(request(40, 20), collector.callback());
        ASSERT_TRUE(id);
        if ((i + t) % 3 == 0) {
          engine_->cancel(*id);
        }
        const auto answer = collector.wait()[0];
        if (answer.last.finished == FinishReason::kLength) {
          EXPECT_EQ(answer.tokens, alone);
          ++finished;
        }
        EXPECT_GE(engine_->stats().slots_used, 0);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_GE(finished, 4 * 20 * 2 / 3 - 4);
  EXPECT_EQ(engine_->stats().slots_used, 0);
}

// Case A1: blocks found for one request are not given to another one in the same step, and what is
// computed in this step is no hit yet.
TEST_F(EngineTest, FoundBlocksAreSafeFromARequestOfTheSameStep) {
  options_.scheduler.max_num_batched_tokens = 512;
  const Request warm = request(63, 1);
  Request with_tail = warm;
  for (const TokenId token : {5, 6, 7}) {
    with_tail.prompt.push_back(token);
  }
  const Request unrelated = request(93, 2, 3);
  const Request fresh = request(70, 2, 9);
  options_.prefix_cache = false;
  start();
  const auto tail_alone = run(with_tail).tokens;
  const auto unrelated_alone = run(unrelated).tokens;
  const auto fresh_alone = run(fresh).tokens;
  options_.prefix_cache = true;
  for (const int num_slots : {12, 14, 16, 20}) {
    // Two layers, so two slots for 16 tokens (the one with a window needs fewer later).
    start(num_slots);
    run(warm);
    Collector a;
    Collector b;
    Collector c;
    Collector d;
    ASSERT_TRUE(engine_->submit(with_tail, a.callback()));
    ASSERT_TRUE(engine_->submit(unrelated, b.callback()));
    ASSERT_TRUE(engine_->submit(fresh, c.callback()));
    ASSERT_TRUE(engine_->submit(fresh, d.callback()));
    EXPECT_EQ(a.wait()[0].tokens, tail_alone) << num_slots;
    EXPECT_EQ(b.wait()[0].tokens, unrelated_alone) << num_slots;
    EXPECT_EQ(c.wait()[0].tokens, fresh_alone) << num_slots;
    EXPECT_EQ(d.wait()[0].tokens, fresh_alone) << num_slots;
    EXPECT_EQ(engine_->stats().slots_used, 0);
  }
}

// Case A7, without tiers: no room is a normal state.
TEST_F(EngineTest, SixHundredPromptsInASmallPoolAllEndRight) {
  options_.scheduler.max_num_seqs = 16;
  options_.scheduler.max_num_batched_tokens = 64;
  std::vector<std::vector<TokenId>> alone;
  start();
  for (int i = 0; i < 30; ++i) {
    alone.push_back(run(request(20 + 4 * i, 8, i)).tokens);
  }
  start(/*num_slots=*/30);
  std::vector<std::unique_ptr<Collector>> collectors;
  for (int i = 0; i < 600; ++i) {
    collectors.push_back(std::make_unique<Collector>());
    ASSERT_TRUE(
        engine_->submit(request(20 + 4 * (i % 30), 8, i % 30), collectors.back()->callback()));
  }
  for (int i = 0; i < 600; ++i) {
    const auto answer = collectors[static_cast<std::size_t>(i)]->wait()[0];
    EXPECT_EQ(answer.tokens, alone[static_cast<std::size_t>(i % 30)]) << i;
    EXPECT_EQ(answer.last.finished, FinishReason::kLength);
  }
  EXPECT_EQ(engine_->stats().slots_used, 0);
  EXPECT_EQ(engine_->stats().requests_waiting, 0);
}

// Case B2: 200 prompts that differ at their end, by four clients over two running sequences: nobody
// gets what follows another prompt, and the count of cached tokens is the truth.
TEST_F(EngineTest, NoClientGetsTheStateOfAnothersPrompt) {
  options_.scheduler.max_num_seqs = 2;
  const auto canary = [](int i) {
    Request one = request(50 + i % 40, 12, i % 3);
    one.prompt.push_back(i % kVocabSize);
    one.prompt.push_back((i / kVocabSize + 3) % kVocabSize);
    return one;
  };
  options_.prefix_cache = false;
  start();
  std::vector<std::vector<TokenId>> alone;
  for (int i = 0; i < 200; ++i) {
    alone.push_back(run(canary(i)).tokens);
  }
  options_.prefix_cache = true;
  start(/*num_slots=*/40);
  std::vector<std::thread> clients;
  for (int client = 0; client < 4; ++client) {
    clients.emplace_back([&, client] {
      for (int i = client; i < 200; i += 4) {
        const Request one = canary(i);
        const auto answer = run(one);
        EXPECT_EQ(answer.tokens, alone[static_cast<std::size_t>(i)]) << i;
        EXPECT_EQ(answer.last.cached_tokens % kBlockSize, 0);
        int longest_common = 0;
        for (int other = 0; other < 200; ++other) {
          const auto theirs = canary(other).prompt;
          const auto common = std::ranges::mismatch(one.prompt, theirs).in1 - one.prompt.begin();
          longest_common = std::max(longest_common, other == i ? 0 : static_cast<int>(common));
        }
        EXPECT_LE(answer.last.cached_tokens, longest_common);
        if (i % 7 == 0) {
          std::this_thread::yield();
        }
      }
    });
  }
  for (std::thread& client : clients) {
    client.join();
  }
  EXPECT_EQ(engine_->stats().slots_used, 0);
}

// Case B8: an exact match is found whatever ran in between.
TEST_F(EngineTest, AnExactMatchIsFoundAfterOtherPrompts) {
  start();
  const auto first = run(request(64, 4));
  run(request(64, 4, 11));
  const auto again = run(request(64, 4));
  EXPECT_EQ(again.last.cached_tokens, 48);  // the last token is always computed
  EXPECT_EQ(again.tokens, first.tokens);
}

TEST(EngineOptions, NameTheFieldThatIsOutOfRange) {
  EngineOptions options;
  EXPECT_THAT(options.validate().error().message(), HasSubstr("context is 0"));
  options.context_tokens = 2;
  EXPECT_TRUE(options.validate().has_value());
  options.max_queue = 0;
  EXPECT_THAT(options.validate().error().message(), HasSubstr("max-queue is 0"));
}

}  // namespace engine_test
}  // namespace karez::test
