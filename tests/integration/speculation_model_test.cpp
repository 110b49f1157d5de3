// Speculative decoding with real models: whoever drafts, and however the KV is stored, the answers
// are those without drafts.
//
// With f32 weights and f32 KV, as in engine_model_test.cpp: products of one row and of many differ
// in the last bits, so logits are equal up to those, and a greedy token may differ where the two
// best are as good as equal.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <iostream>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/attached_key_index.h"
#include "engine/block_loader.h"
#include "engine/engine.h"
#include "engine/home_tier.h"
#include "engine/self_proposer.h"
#include "model/ggml_model_runner.h"
#include "model/tokenizer.h"
#include "spec/draft_model_proposer.h"
#include "spec/ngram_proposer.h"
#include "support/borrowed_runner.h"
#include "support/dequantised_copy.h"
#include "support/fake_draft_proposer.h"
#include "support/model_files.h"
#include "support/oracle.h"
#include "support/temporary_file.h"

namespace karez::test {
namespace speculation_model_test {

constexpr int kContext = 700;
constexpr int kBatchedTokens = 128;
constexpr float kSameLogprob = 1e-3F;

struct Answer {
  std::string text;
  std::vector<GeneratedToken> tokens;
  GenerationEvent last;
};
using Answers = std::vector<std::vector<Answer>>;  // [requests][choices]

enum class Drafter { kNone, kRandom, kNgram, kSameModel, kSelf };

struct Way {
  std::string name;
  Drafter drafter = Drafter::kNone;
  SpeculationOptions lengths = {};
  double pool_contexts = 5;  // size of the pool in whole contexts
  bool has_home = false;     // room for everything in a host tier
};

const SpeculationOptions kAlwaysThree = {.max_drafts = 3, .min_drafts = 3};

class SpeculationModel : public testing::Test {
 protected:
  // Without f32 the model is as it is in its file.
  void load(const char* name, const SparseOptions& sparse, bool dense_rows, bool f32 = true) {
    std::string path = model_path(name);
    tokenizer_ = std::move(Tokenizer::load(path).value());
    vocabulary_ = model_vocabulary(*tokenizer_, kContext);
    text_ = real_text(path, kContext);
    if (f32) {
      write_dequantised_copy(path, file_.path());
      path = file_.path();
    }
    sparse_ = sparse;
    dense_rows_ = dense_rows;
    kv_type_ = f32 ? KvType::kF32 : KvType::kBf16;
    runner_ = std::move(load_model(path, {.num_threads = 2,
                                          .kv_type = kv_type_,
                                          .sparse = sparse,
                                          .selection_listener = &current_loader_})
                            .value());
  }

  std::vector<TokenId> text(int first, int count) const {
    return {text_.begin() + first, text_.begin() + first + count};
  }
  Request request(std::vector<TokenId> prompt, int max_tokens) const {
    Request request;
    request.prompt = std::move(prompt);
    request.max_tokens = max_tokens;
    request.ignore_eos = true;
    request.num_logprobs = 2;
    request.sampling.temperature = 0;
    return request;
  }

  std::unique_ptr<DraftProposer> make_proposer(Drafter drafter, KVCacheManager& kv,
                                               const KeyIndex* key_index, BlockLoader* loader) {
    switch (drafter) {
      case Drafter::kNone:
        break;
      case Drafter::kRandom:
        return std::make_unique<FakeDraftProposer>(
            [random = std::make_shared<std::mt19937>(5),
             vocab_size = static_cast<unsigned>(vocabulary_->size())](const DraftQuery& query) {
              std::vector<TokenId> drafts(static_cast<std::size_t>(query.max_drafts));
              std::ranges::generate(drafts,
                                    [&] { return static_cast<TokenId>((*random)() % vocab_size); });
              return drafts;
            });
      case Drafter::kNgram:
        return std::make_unique<NgramProposer>(NgramOptions{.min_match = 1});
      case Drafter::kSameModel: {
        const KVCacheSpec& spec = kv.spec();
        return std::make_unique<DraftModelProposer>(
            std::make_unique<BorrowedRunner>(*runner_),
            KVCacheManager::create(spec, 5 * spec.slots_for_sequence(kContext, kBatchedTokens) *
                                             static_cast<std::int64_t>(spec.slot_bytes()))
                .value(),
            DraftModelOptions{.context_tokens = kContext, .max_batch_tokens = kContext});
      }
      case Drafter::kSelf:
        return std::make_unique<SelfProposer>(*runner_, kv, key_index, loader);
    }
    return nullptr;
  }

  std::unique_ptr<Engine> make_engine(const Way& way) {
    EngineOptions options;
    options.scheduler.max_num_batched_tokens = kBatchedTokens;
    options.context_tokens = kContext;
    options.dense_rows = dense_rows_;
    const bool is_sparse = sparse_.is_on() && !dense_rows_;
    if (is_sparse) {
      options.scheduler.max_dense_tokens = sparse_.token_budget / kBlockSize * kBlockSize;
    }
    const KVCacheSpec spec = runner_->config().kv_cache_spec(kv_type_);
    const double context_bytes =
        static_cast<double>(spec.slots_for_sequence(kContext, kBatchedTokens)) *
        static_cast<double>(spec.slot_bytes());
    HomeOptions home;
    if (way.has_home) {
      home.host_bytes = static_cast<std::int64_t>(10 * context_bytes);
      if (is_sparse) {
        options.scheduler.decode_floor_tokens = decode_floor_tokens(sparse_);
        options.scheduler.decode_read_tokens = decode_read_tokens(sparse_, spec);
      }
    }
    auto kv =
        KVCacheManager::create(spec, static_cast<std::int64_t>(way.pool_contexts * context_bytes),
                               make_home_tier(spec, home).value())
            .value();
    auto key_index = attach_key_index(*kv, sparse_).value();
    auto loader = std::make_unique<BlockLoader>();
    current_loader_.loader = way.has_home ? loader.get() : nullptr;
    std::unique_ptr<Speculation> speculation;
    if (auto proposer = make_proposer(way.drafter, *kv, key_index.get(), current_loader_.loader)) {
      speculation = std::make_unique<Speculation>(way.lengths, std::move(proposer));
    }
    return Engine::create(options, std::make_unique<BorrowedRunner>(*runner_), std::move(kv),
                          *vocabulary_, std::move(key_index), std::move(loader),
                          std::move(speculation))
        .value();
  }

  static Answers run(Engine& engine, const std::vector<Request>& requests) {
    std::mutex mutex;
    std::condition_variable changed;
    Answers answers;
    int num_open = 0;
    for (const Request& request : requests) {
      answers.emplace_back(static_cast<std::size_t>(request.num_choices));
      num_open += request.num_choices;
    }
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const auto id = engine.submit(requests[i], [&, i](const GenerationEvent& event) {
        const std::lock_guard lock(mutex);
        Answer& answer = answers[i][static_cast<std::size_t>(event.choice)];
        answer.text += event.text;
        answer.tokens.insert(answer.tokens.end(), event.tokens.begin(), event.tokens.end());
        answer.last = event;
        num_open -= event.finished ? 1 : 0;
        changed.notify_all();
      });
      EXPECT_TRUE(id) << id.error().to_string();
    }
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return num_open == 0; });
    return answers;
  }

  void expect_same(const Answer& answer, const Answer& plain, bool is_greedy) {
    const std::size_t count = std::min(answer.tokens.size(), plain.tokens.size());
    for (std::size_t i = 0; i < count; ++i) {
      const GeneratedToken& expected = plain.tokens[i];
      const float difference = std::abs(answer.tokens[i].chosen.logprob - expected.chosen.logprob);
      if (answer.tokens[i].chosen.token != expected.chosen.token) {
        ASSERT_TRUE(is_greedy) << "token " << i;
        std::cout << "  near tie at token " << i << std::endl;
        EXPECT_LE(expected.alternatives[0].logprob - expected.alternatives[1].logprob, kSameLogprob)
            << "token " << i;
        return;
      }
      most_difference_ = std::max(most_difference_, difference);
      EXPECT_LE(difference, kSameLogprob) << "token " << i;
    }
    EXPECT_EQ(answer.tokens.size(), plain.tokens.size());
    EXPECT_EQ(answer.text, plain.text);
    EXPECT_EQ(answer.last.finished, plain.last.finished);
    EXPECT_EQ(answer.last.stop_match, plain.last.stop_match);
    EXPECT_EQ(answer.last.generated_tokens, plain.last.generated_tokens);
  }

  void expect_the_answers_of(const std::vector<Request>& requests, const Answers& expected,
                             const std::vector<Way>& ways) {
    for (const Way& way : ways) {
      SCOPED_TRACE(way.name);
      const auto engine = make_engine(way);
      const Answers answers = run(*engine, requests);
      most_difference_ = 0;
      for (std::size_t i = 0; i < requests.size(); ++i) {
        for (std::size_t choice = 0; choice < answers[i].size(); ++choice) {
          SCOPED_TRACE("request " + std::to_string(i) + ", choice " + std::to_string(choice));
          expect_same(answers[i][choice], expected[i][choice],
                      requests[i].sampling.temperature == 0);
        }
      }
      const EngineStats stats = engine->stats();
      std::cout << "  " << way.name << ": " << stats.speculation.accepted_tokens << " of "
                << stats.speculation.draft_tokens << " drafts, " << stats.preemptions
                << " preemptions, logprobs within " << most_difference_ << std::endl;
      EXPECT_EQ(stats.slots_used, 0);
      EXPECT_GT(stats.speculation.draft_tokens, 0);
      EXPECT_EQ(stats.speculation.sequences_off, 0) << "all are forgotten";
      if (way.drafter != Drafter::kRandom) {
        EXPECT_GT(stats.speculation.accepted_tokens, 0);
      }
      if (way.has_home) {
        EXPECT_GT(stats.tiers.demand_misses, 0);
      } else if (way.pool_contexts < 1) {
        EXPECT_GT(stats.preemptions, 0);
      }
    }
  }

  // Shared and equal prompt beginnings, choices, a grammar, draws with penalties. The stop text of
  // the last one is in the middle of its answer without drafts.
  std::vector<Request> requests() {
    std::vector<Request> requests;
    requests.push_back(request(text(0, 330), 16));
    requests.push_back(request(text(0, 350), 12));
    requests.back().num_choices = 2;
    requests.back().sampling.temperature = 0.8F;
    requests.back().sampling.seed = 7;
    requests.back().sampling.repeat_penalty = 1.1F;
    requests.back().sampling.presence_penalty = 0.5F;
    requests.push_back(request(text(400, 60), 20));
    requests.back().ignore_eos = false;
    requests.back().sampling.grammar =
        R"(root ::= "{\"name\": \"" [a-z]{3,6} "\", \"sizes\": [1, 2, 3, " [0-9] "]}")";
    requests.push_back(request(text(500, 40), 16));
    const std::vector<TokenId> again = requests.back().prompt;
    requests.back().prompt.insert(requests.back().prompt.end(), again.begin(), again.begin() + 24);
    requests.push_back(request(text(0, 330), 16));
    return requests;
  }
  void stop_in_the_middle(Request& request, const Answer& answer) const {
    const std::size_t middle = answer.text.size() / 2;
    request.sampling.stop = {answer.text.substr(middle, 3)};
  }
  Answers plain_answers(std::vector<Request>& requests) {
    const auto engine = make_engine({"plain"});
    stop_in_the_middle(requests.back(), run(*engine, {requests.back()}).front().front());
    Answers answers = run(*engine, requests);
    EXPECT_FALSE(answers.back().front().last.stop_match.empty());
    return answers;
  }

  TemporaryFile file_{"speculation_f32.gguf"};
  struct CurrentLoader final : SelectionListener {
    // Of the engine that has the runner; one without a home needs none.
    void on_selected(int layer, std::span<SelectedBlocks> selected) override {
      if (loader != nullptr) {
        loader->on_selected(layer, selected);
      }
    }
    BlockLoader* loader = nullptr;
  };
  CurrentLoader current_loader_;
  SparseOptions sparse_;
  bool dense_rows_ = false;
  KvType kv_type_ = KvType::kF32;
  std::unique_ptr<ModelRunner> runner_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<Vocabulary> vocabulary_;
  std::vector<TokenId> text_;
  float most_difference_ = 0;
};

const SparseOptions kBudget = {.token_budget = 192, .recent_window = 64};

// Cases E1, E8.
TEST_F(SpeculationModel, DenseAnswersAreThoseWithoutDrafts) {
  load(kSmolLm2, kBudget, /*dense_rows=*/true);
  std::vector<Request> all = requests();
  const Answers expected = plain_answers(all);
  expect_the_answers_of(
      all, expected,
      {{"random", Drafter::kRandom, {.max_drafts = 4, .min_drafts = 4}},
       {"n-gram", Drafter::kNgram, {.max_drafts = 8, .min_drafts = 2}},
       {"same model", Drafter::kSameModel, kAlwaysThree},
       {"self", Drafter::kSelf, kAlwaysThree},
       {"self, home", Drafter::kSelf, kAlwaysThree, 0.4, true},
       {"n-gram, home", Drafter::kNgram, {.max_drafts = 8, .min_drafts = 2}, 0.4, true}});
}

TEST_F(SpeculationModel, SparseAnswersAreThoseWithoutDrafts) {
  load(kSmolLm2, kBudget, /*dense_rows=*/false);
  std::vector<Request> all = requests();
  const Answers expected = plain_answers(all);
  expect_the_answers_of(
      all, expected,
      {{"random, home", Drafter::kRandom, {.max_drafts = 4, .min_drafts = 4}, 0.4, true},
       {"n-gram", Drafter::kNgram, {.max_drafts = 8, .min_drafts = 2}},
       {"same model", Drafter::kSameModel, kAlwaysThree},
       {"self", Drafter::kSelf, kAlwaysThree},
       {"self, home", Drafter::kSelf, kAlwaysThree, 0.4, true}});
}

// Each takes 7 blocks in the end and 3 at first, and the pool has 11: two start.
TEST_F(SpeculationModel, PreemptedAnswersAreThoseWithoutDrafts) {
  load(kSmolLm2, kBudget, /*dense_rows=*/true);
  const std::vector<Request> all = {request(text(0, 40), 60), request(text(100, 40), 60),
                                    request(text(200, 40), 60)};
  const Answers expected = run(*make_engine({"plain"}), all);
  expect_the_answers_of(all, expected,
                        {{"n-gram", Drafter::kNgram, {.max_drafts = 8, .min_drafts = 2}, 0.255},
                         {"same model", Drafter::kSameModel, kAlwaysThree, 0.255},
                         {"self", Drafter::kSelf, kAlwaysThree, 0.255}});
}

// Sliding windows: a window lets go of blocks that rejected drafts may not take with them.
TEST_F(SpeculationModel, AnswersOfWindowedLayersAreThoseWithoutDrafts) {
  load(kGemma3, {}, /*dense_rows=*/false);
  std::vector<Request> all = {request(text(0, 540), 10), request(text(0, 520), 10)};
  const Answers expected = run(*make_engine({"plain"}), all);
  expect_the_answers_of(all, expected,
                        {{"random", Drafter::kRandom, {.max_drafts = 20, .min_drafts = 20}},
                         {"same model", Drafter::kSameModel, kAlwaysThree}});
}

// Case E3: a drafter that is the target is right at every length.
TEST_F(SpeculationModel, TheTargetAcceptsItsOwnDrafts) {
  load(kSmolLm2, {}, /*dense_rows=*/false);
  for (int length = 1; length <= 6; ++length) {
    SCOPED_TRACE(length);
    const auto engine = make_engine({"", Drafter::kSameModel, {length, length}});
    EXPECT_EQ(run(*engine, {request(text(0, 40), 22)})[0][0].tokens.size(), 22U);
    const SpeculationStats stats = engine->stats().speculation;
    EXPECT_GE(stats.draft_tokens, 10);
    EXPECT_EQ(stats.accepted_tokens, stats.draft_tokens);
  }
}

// Case E7.
TEST_F(SpeculationModel, AcceptanceDoesNotSinkWithTheNumberOfRequests) {
  constexpr int kRounds = 30;
  load(kSmolLm2, {}, /*dense_rows=*/false, /*f32=*/false);
  const auto engine = make_engine({"", Drafter::kNgram, {.max_drafts = 4, .min_drafts = 4}});
  std::vector<Request> prompts;
  for (int i = 0; i < 8; ++i) {
    std::vector<TokenId> prompt = text(i * 40, 20);
    prompt.insert(prompt.end(), prompt.begin(), prompt.begin() + 12);
    prompts.push_back(request(prompt, 8));
  }
  std::vector<double> acceptances;
  SpeculationStats before;
  for (int round = 0; round < kRounds; ++round) {
    run(*engine, prompts);
    if ((round + 1) % (kRounds / 3) == 0) {
      const SpeculationStats now = engine->stats().speculation;
      acceptances.push_back(static_cast<double>(now.accepted_tokens - before.accepted_tokens) /
                            static_cast<double>(now.draft_tokens - before.draft_tokens));
      before = now;
      std::cout << "  acceptance " << acceptances.back() << std::endl;
    }
  }
  EXPECT_GT(acceptances.front(), 0.05);
  // Steps are of different rows each time, and quantised products round accordingly.
  EXPECT_NEAR(acceptances.back(), acceptances.front(), 0.2 * acceptances.front());
}

}  // namespace speculation_model_test
}  // namespace karez::test
