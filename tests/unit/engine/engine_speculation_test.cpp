// Speculative decoding in the engine: whoever drafts, the answer is the one without drafts. The
// fake runner's tokens are a hash of all keys and values that a row may see.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "spec/draft_model_proposer.h"
#include "spec/ngram_proposer.h"
#include "support/fake_draft_proposer.h"
#include "support/fake_vocabulary.h"
#include "support/paged_fake_runner.h"

namespace karez::test {
namespace engine_speculation_test {

constexpr int kVocabSize = 40;

struct Answer {
  std::string text;
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;
  GenerationEvent last;
};

std::unique_ptr<KVCacheManager> make_kv(int num_slots) {
  const KVCacheSpec spec = PagedFakeRunner::kv_spec({40, 0});
  return KVCacheManager::create(spec, static_cast<std::int64_t>(spec.slot_bytes()) * num_slots)
      .value();
}

// Drafters by name; a new one for each engine.
using MakeProposer = std::unique_ptr<DraftProposer> (*)();
struct Drafter {
  const char* name;
  MakeProposer make;
  SpeculationOptions options = {};
};

void PrintTo(const Drafter& drafter, std::ostream* out) { *out << drafter.name; }

std::unique_ptr<DraftProposer> random_drafter() {
  auto random = std::make_shared<std::mt19937>(5);
  return std::make_unique<FakeDraftProposer>([random](const DraftQuery& query) {
    std::vector<TokenId> drafts(static_cast<std::size_t>(query.max_drafts));
    for (TokenId& draft : drafts) {
      draft = static_cast<TokenId>((*random)() % kVocabSize);
    }
    return drafts;
  });
}

// The target itself.
std::unique_ptr<DraftProposer> same_model() {
  return std::make_unique<DraftModelProposer>(
      std::make_unique<PagedFakeRunner>(kVocabSize), make_kv(400),
      DraftModelOptions{.context_tokens = 400, .max_batch_tokens = 400});
}

std::unique_ptr<DraftProposer> ngram() {
  return std::make_unique<NgramProposer>(NgramOptions{.min_match = 1});
}

class EngineSpeculation : public testing::TestWithParam<Drafter> {
 protected:
  EngineSpeculation() { options_.context_tokens = 300; }

  void start(std::unique_ptr<Speculation> speculation, int num_slots = 400) {
    engine_ =
        Engine::create(options_, std::make_unique<PagedFakeRunner>(kVocabSize), make_kv(num_slots),
                       vocabulary_, nullptr, nullptr, std::move(speculation))
            .value();
  }
  std::unique_ptr<Speculation> speculation() {
    return std::make_unique<Speculation>(GetParam().options, GetParam().make());
  }

  // By request and choice.
  using Answers = std::map<std::pair<std::size_t, int>, Answer>;
  Answers run(const std::vector<Request>& requests) {
    std::mutex mutex;
    std::condition_variable changed;
    Answers answers;
    int num_open = 0;
    for (const Request& request : requests) {
      num_open += request.num_choices;
    }
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const auto id = engine_->submit(requests[i], [&, i](const GenerationEvent& event) {
        const std::lock_guard lock(mutex);
        Answer& answer = answers[{i, event.choice}];
        answer.text += event.text;
        for (const GeneratedToken& token : event.tokens) {
          answer.tokens.push_back(token.chosen.token);
          answer.logprobs.push_back(token.chosen.logprob);
        }
        answer.last = event;
        num_open -= event.finished ? 1 : 0;
        changed.notify_all();
      });
      EXPECT_TRUE(id);
    }
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return num_open == 0; });
    return answers;
  }
  static Request request(int prompt_tokens, int max_tokens, TokenId first, int num_choices = 1) {
    Request request;
    for (int i = 0; i < prompt_tokens; ++i) {
      request.prompt.push_back((first + i * 7 + i / 9) % kVocabSize);
    }
    request.max_tokens = max_tokens;
    request.num_choices = num_choices;
    return request;
  }
  // Ends, stop texts, log probabilities, choices, shared and equal prompts.
  static std::vector<Request> requests() {
    std::vector<Request> requests;
    for (int i = 0; i < 12; ++i) {
      requests.push_back(request(1 + i * 9, 40, 1 + i % 3, i % 4 == 3 ? 3 : 1));
      requests.back().ignore_eos = i % 3 != 0;
      requests.back().num_logprobs = i % 2 == 0 ? 2 : -1;
    }
    requests[4].sampling.stop = {"ab", "q"};
    requests[5].sampling.stop = {"zz"};
    requests[6].min_tokens = 20;
    requests[6].sampling.stop = {"a", "b", "c"};
    requests[7].stop_token_ids = {3, 4, 5};
    requests[8].logit_bias = {{7, 20.0F}};
    requests[9].max_tokens = 1;
    requests[10].max_tokens = 2;
    return requests;
  }
  static void expect_equal(const Answers& answers, const Answers& expected) {
    ASSERT_EQ(answers.size(), expected.size());
    for (const auto& [key, answer] : answers) {
      SCOPED_TRACE("request " + std::to_string(key.first));
      const Answer& plain = expected.at(key);
      EXPECT_EQ(answer.tokens, plain.tokens);
      EXPECT_EQ(answer.text, plain.text);
      EXPECT_EQ(answer.logprobs, plain.logprobs);
      EXPECT_EQ(answer.last.finished, plain.last.finished);
      EXPECT_EQ(answer.last.stop_match, plain.last.stop_match);
      EXPECT_EQ(answer.last.generated_tokens, plain.last.generated_tokens);
    }
  }

  FakeVocabulary vocabulary_{kVocabSize};
  EngineOptions options_;
  std::unique_ptr<Engine> engine_;
};

// Cases E1, E8: also with a pool in pieces, prefix hits and preemption.
TEST_P(EngineSpeculation, AnswersAreThoseWithoutDrafts) {
  start(nullptr);
  const Answers expected = run(requests());
  for (const int num_slots : {400, 60, 26}) {
    for (const int batch : {512, 24}) {
      SCOPED_TRACE(std::to_string(num_slots) + " slots, steps of " + std::to_string(batch));
      options_.scheduler.max_num_batched_tokens = batch;
      start(speculation(), num_slots);
      expect_equal(run(requests()), expected);
      expect_equal(run(requests()), expected);  // with prefix hits
      const EngineStats stats = engine_->stats();
      EXPECT_TRUE(stats.has_speculation);
      EXPECT_EQ(stats.slots_used, 0);
      EXPECT_EQ(stats.speculation.sequences_off, 0) << "all are forgotten";
      // With few slots requests are preempted, or not, as it happens; the random load on the
      // scheduler sees to it that they are.
      if (num_slots > 26 && GetParam().options.min_drafts > 0) {
        EXPECT_GT(stats.speculation.draft_tokens, 0);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Drafters, EngineSpeculation,
    testing::Values(Drafter{"Random", random_drafter, {.max_drafts = 5, .min_drafts = 5}},
                    Drafter{"SameModel", same_model, {.max_drafts = 4, .min_drafts = 4}},
                    Drafter{"SameModelAdaptive", same_model},
                    Drafter{"Ngram", ngram, {.max_drafts = 8, .min_drafts = 2}},
                    Drafter{"NgramAdaptive", ngram}),
    [](const auto& drafter) { return std::string(drafter.param.name); });

class EngineDraftLength : public EngineSpeculation {};

// Case E3: a drafter that is the target is right at every length.
TEST_P(EngineDraftLength, TheTargetAcceptsItsOwnDrafts) {
  start(speculation());
  Request one = request(30, 60, 2);
  one.ignore_eos = true;
  const Answer answer = run({one}).at({0, 0});
  EXPECT_EQ(answer.tokens.size(), 60U);
  const SpeculationStats stats = engine_->stats().speculation;
  EXPECT_GE(stats.draft_tokens, 29);
  EXPECT_EQ(stats.accepted_tokens, stats.draft_tokens);
  EXPECT_EQ(answer.last.draft_tokens, stats.draft_tokens);
  EXPECT_EQ(answer.last.accepted_draft_tokens, stats.accepted_tokens);
}

INSTANTIATE_TEST_SUITE_P(
    Lengths, EngineDraftLength,
    testing::Values(Drafter{"K1", same_model, {1, 1}}, Drafter{"K2", same_model, {2, 2}},
                    Drafter{"K3", same_model, {3, 3}}, Drafter{"K4", same_model, {4, 4}},
                    Drafter{"K5", same_model, {5, 5}}, Drafter{"K6", same_model, {6, 6}}),
    [](const auto& drafter) { return std::string(drafter.param.name); });

// Draws from the softmax of the logits.
class DrawingSampler final : public Sampler {
 public:
  explicit DrawingSampler(std::uint32_t seed) : random_(seed) {}
  Expected<std::int32_t> sample(std::span<const float> logits) override {
    std::vector<double> weights;
    for (const float logit : logits) {
      weights.push_back(std::exp(static_cast<double>(logit)));
    }
    return std::discrete_distribution<std::int32_t>(weights.begin(), weights.end())(random_);
  }
  void accept(std::int32_t /*token*/) override {}

 private:
  std::mt19937 random_;
};

class DrawingVocabulary final : public Vocabulary {
 public:
  int size() const override { return fake_.size(); }
  std::string piece(TokenId token) const override { return fake_.piece(token); }
  std::span<const TokenId> end_tokens() const override { return fake_.end_tokens(); }
  Expected<std::unique_ptr<Sampler>> make_sampler(const SamplingParams& params) const override {
    return std::make_unique<DrawingSampler>(params.seed);
  }

 private:
  FakeVocabulary fake_{kVocabSize};
};

// The runner's logits are 10 for one token and 0 for 39: p = 0.9983. Half as high they are spread:
// e^5 / (e^5 + 39) = 0.792 and 0.0053 each for the others.
class FlatterRunner final : public ModelRunner {
 public:
  const ModelConfig& config() const override { return runner_.config(); }
  Expected<std::span<const float>> forward(const ForwardBatch& batch, KVCacheManager& kv) override {
    const auto logits = runner_.forward(batch, kv);
    logits_.assign(logits->begin(), logits->end());
    for (float& logit : logits_) {
      logit *= 0.5F;
    }
    return std::span<const float>(logits_);
  }
  StepTimes take_step_times() override { return {}; }

 private:
  PagedFakeRunner runner_{kVocabSize};
  std::vector<float> logits_;
};

// What the fake model finds most likely is drafted with probability 1/2, else something else: the
// frequency of the most likely token over 20,000 draws, and of the others, is the model's.
TEST(EngineSampling, SampledTokensHaveTheTargetsDistribution) {
  constexpr int kDraws = 20000;
  DrawingVocabulary vocabulary;
  EngineOptions options;
  options.context_tokens = 110;
  auto random = std::make_shared<std::mt19937>(11);
  auto most_likely = std::make_shared<DraftModelProposer>(
      std::make_unique<PagedFakeRunner>(kVocabSize), make_kv(400),
      DraftModelOptions{.context_tokens = 400, .max_batch_tokens = 400});
  auto drafter = std::make_unique<FakeDraftProposer>([=](const DraftQuery& query) {
    std::vector<TokenId> drafts = most_likely->propose(std::span(&query, 1)).front().tokens;
    for (TokenId& draft : drafts) {
      draft = (*random)() % 2 == 0 ? draft : static_cast<TokenId>((*random)() % kVocabSize);
    }
    return drafts;
  });
  auto engine =
      Engine::create(options, std::make_unique<FlatterRunner>(), make_kv(400), vocabulary, nullptr,
                     nullptr,
                     std::make_unique<Speculation>(
                         SpeculationOptions{.max_drafts = 3, .min_drafts = 3}, std::move(drafter)))
          .value();
  PagedFakeRunner judge(kVocabSize);
  int most_likely_count = 0;
  std::vector<int> distance_count(kVocabSize);  // from the most likely token
  for (std::uint32_t round = 0; round < kDraws / 100; ++round) {
    Request request;
    request.prompt = {1, 2, static_cast<TokenId>(round % kVocabSize)};
    request.max_tokens = 100;
    request.ignore_eos = true;
    request.sampling.seed = round;
    std::vector<TokenId> tokens = request.prompt;
    std::mutex mutex;
    std::condition_variable changed;
    bool is_over = false;
    ASSERT_TRUE(engine->submit(request, [&](const GenerationEvent& event) {
      const std::lock_guard lock(mutex);
      for (const GeneratedToken& token : event.tokens) {
        tokens.push_back(token.chosen.token);
      }
      is_over = event.finished.has_value();
      changed.notify_all();
    }));
    {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return is_over; });
    }
    ASSERT_EQ(tokens.size(), 103U);
    // What the model finds most likely at each place.
    auto kv = make_kv(400);
    const SequenceId sequence = kv->open();
    ASSERT_TRUE(kv->extend(sequence, 103));
    ForwardBatch batch;
    batch.tokens = tokens;
    batch.sequences.push_back({{kv->table(sequence, 0), kv->table(sequence, 1)}, 0, 103, 0});
    for (int row = 2; row < 102; ++row) {
      batch.output_rows.push_back(row);
    }
    const auto logits = judge.forward(batch, *kv).value();
    for (std::size_t i = 0; i < 100; ++i) {
      const auto row = logits.subspan(i * kVocabSize, kVocabSize);
      const auto best = static_cast<TokenId>(std::ranges::max_element(row) - row.begin());
      const int distance = (tokens[3 + i] - best + kVocabSize) % kVocabSize;
      most_likely_count += distance == 0 ? 1 : 0;
      ++distance_count[static_cast<std::size_t>(distance)];
    }
  }
  const SpeculationStats stats = engine->stats().speculation;
  EXPECT_GT(stats.accepted_tokens, 2000);
  EXPECT_GT(stats.draft_tokens - stats.accepted_tokens, 2000);
  const double total = std::exp(5.0) + kVocabSize - 1;
  double chi_squared = 0;
  for (int distance = 0; distance < kVocabSize; ++distance) {
    const double expected = kDraws * (distance == 0 ? std::exp(5.0) : 1.0) / total;
    const double difference = distance_count[static_cast<std::size_t>(distance)] - expected;
    chi_squared += difference * difference / expected;
  }
  // 39 degrees of freedom: more than 72.1 once in a thousand seeds.
  EXPECT_LT(chi_squared, 72.1);
  EXPECT_NEAR(most_likely_count / double{kDraws}, std::exp(5.0) / total, 0.01);
}

}  // namespace engine_speculation_test
}  // namespace karez::test
