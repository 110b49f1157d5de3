// Greedy answers of the engine with real models: however a request was run, its tokens are those
// it gets alone.
//
// With f32 weights and f32 KV, because quantised products round activations differently for one row
// and for many. Even so the order of sums differs in the last bits, so a token may differ where the
// two best are as good as equal; the comparison ends there.
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <iostream>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "engine/attached_key_index.h"
#include "engine/block_loader.h"
#include "engine/engine.h"
#include "engine/home_tier.h"
#include "engine/kv_identity.h"
#include "engine/stored_prefixes.h"
#include "model/ggml_model_runner.h"
#include "model/tokenizer.h"
#include "support/borrowed_runner.h"
#include "support/dequantised_copy.h"
#include "support/model_files.h"
#include "support/oracle.h"
#include "support/store/temporary_folder.h"
#include "support/temporary_file.h"

namespace karez::test {
namespace engine_model_test {

constexpr int kPromptTokens = 600;  // more than the window of Gemma 3
constexpr int kGenerated = 10;
constexpr float kNearTie = 0.02F;  // of two log probabilities

// Passes on to the loader of the engine that has the runner; those without a home need none.
class CurrentLoader final : public SelectionListener {
 public:
  void on_selected(int layer, std::span<SelectedBlocks> selected) override {
    if (loader != nullptr) {
      loader->on_selected(layer, selected);
    }
  }
  BlockLoader* loader = nullptr;
};

struct Answer {
  std::vector<GeneratedToken> tokens;
  int cached_tokens = 0;
  bool finished = false;
};

struct Way {
  std::string name;
  int batched_tokens = 512;
  bool prefix_cache = true;
  double pool_sequences = 8;  // size of the pool in whole sequences
  bool has_home = false;      // room for everything in a host tier
};

class EngineModel : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string path = model_path(GetParam());
    write_dequantised_copy(path, file_.path());
    load({});
    auto tokenizer = Tokenizer::load(path);
    ASSERT_TRUE(tokenizer) << tokenizer.error().to_string();
    tokenizer_ = std::move(*tokenizer);
    vocabulary_ = model_vocabulary(*tokenizer_, kPromptTokens + kGenerated);
    text_ = real_text(path, 3 * kPromptTokens);
  }

  void load(const SparseOptions& sparse) {
    runner_.reset();
    sparse_ = sparse;
    auto runner = load_model(file_.path(), {.num_threads = 2,
                                            .kv_type = KvType::kF32,
                                            .sparse = sparse,
                                            .selection_listener = &current_loader_});
    ASSERT_TRUE(runner) << runner.error().to_string();
    runner_ = std::move(*runner);
  }

  std::vector<TokenId> prompt(int first, int count = kPromptTokens) const {
    return {text_.begin() + first, text_.begin() + first + count};
  }

  std::unique_ptr<Engine> make_engine(const Way& way) {
    EngineOptions options;
    options.scheduler.max_num_batched_tokens = way.batched_tokens;
    options.context_tokens = 1024;
    options.prefix_cache = way.prefix_cache;
    options.compress = compression_.has_value();
    options.compression = compression_.value_or(CompressionOptions{});
    if (sparse_.is_on()) {
      options.scheduler.max_dense_tokens = sparse_.token_budget / kBlockSize * kBlockSize;
    }
    const KVCacheSpec spec = runner_->config().kv_cache_spec(KvType::kF32);
    const auto slots = static_cast<double>(
        spec.slots_for_sequence(kPromptTokens + kGenerated, way.batched_tokens));
    const auto cap = static_cast<std::int64_t>(slots * way.pool_sequences) *
                     static_cast<std::int64_t>(spec.slot_bytes());
    HomeOptions home;
    if (way.has_home) {
      home.host_bytes =
          10 * static_cast<std::int64_t>(slots) * static_cast<std::int64_t>(spec.slot_bytes());
      options.scheduler.decode_floor_tokens = decode_floor_tokens(sparse_);
      options.scheduler.decode_read_tokens = decode_read_tokens(sparse_, spec);
    }
    auto kv =
        std::move(KVCacheManager::create(spec, cap, make_home_tier(spec, home).value()).value());
    auto key_index = std::move(attach_key_index(*kv, sparse_).value());
    auto loader = std::make_unique<BlockLoader>();
    current_loader_.loader = way.has_home ? loader.get() : nullptr;  // the latest one with a home
    auto stored = make_prefix_store(spec, kv_identity({}, spec), store_, {}).value();
    auto engine = Engine::create(options, std::make_unique<BorrowedRunner>(*runner_), std::move(kv),
                                 *vocabulary_, std::move(key_index), std::move(loader), nullptr,
                                 std::move(stored));
    return std::move(engine.value());
  }

  static std::vector<Answer> run(Engine& engine, const std::vector<std::vector<TokenId>>& prompts) {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<Answer> answers(prompts.size());
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      Request request;
      request.prompt = prompts[i];
      request.max_tokens = kGenerated;
      request.ignore_eos = true;
      request.num_logprobs = 2;
      request.sampling.temperature = 0;
      const auto id = engine.submit(std::move(request), [&, i](const GenerationEvent& event) {
        const std::lock_guard lock(mutex);
        answers[i].tokens.insert(answers[i].tokens.end(), event.tokens.begin(), event.tokens.end());
        answers[i].cached_tokens = event.cached_tokens;
        answers[i].finished = event.finished.has_value();
        changed.notify_all();
      });
      EXPECT_TRUE(id) << id.error().to_string();
    }
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return std::ranges::all_of(answers, &Answer::finished); });
    return answers;
  }

  static void expect_same(const Answer& answer, const Answer& alone) {
    ASSERT_EQ(alone.tokens.size(), static_cast<std::size_t>(kGenerated));
    ASSERT_EQ(answer.tokens.size(), alone.tokens.size());
    for (std::size_t i = 0; i < alone.tokens.size(); ++i) {
      if (answer.tokens[i].chosen.token == alone.tokens[i].chosen.token) {
        continue;
      }
      const auto& best = alone.tokens[i].alternatives;
      std::cout << "  near tie at token " << i << std::endl;
      EXPECT_LE(best[0].logprob - best[1].logprob, kNearTie) << "token " << i;
      return;
    }
  }

  static std::vector<Way> all_ways() {
    return {Way{"small chunks", 61},
            Way{"home", 64, false, 0.5, true},
            Way{"home and cached", 61, true, 0.5, true},
            Way{"batched", 512, false},
            Way{"preempted", 512, false, 1.3},
            Way{"preempted and cached", 200, true, 1.3},
            Way{"batched and cached", 512}};
  }
  // The prompts' answers alone, then in other ways.
  void expect_same_however_run(const std::vector<Way>& ways = all_ways()) {
    const std::vector<std::vector<TokenId>> prompts = {prompt(0), prompt(300, 150), prompt(900, 60),
                                                       prompt(0, 200)};
    std::vector<Answer> alone;
    {
      const auto engine = make_engine({"alone", 512, false});
      for (const auto& one : prompts) {
        alone.push_back(run(*engine, {one}).front());
      }
    }
    for (const Way& way : ways) {
      SCOPED_TRACE(way.name);
      const auto engine = make_engine(way);
      const auto answers = run(*engine, prompts);
      for (std::size_t i = 0; i < prompts.size(); ++i) {
        SCOPED_TRACE(i);
        expect_same(answers[i], alone[i]);
      }
      EXPECT_EQ(engine->stats().slots_used, 0);
    }
  }

  // What comes back from a folder has the bits of what is still in memory.
  void expect_same_bits_when_restored() {
    const TemporaryFolder folder;
    store_ = {.disk_directory = folder.path(), .disk_bytes = kGiB};
    Answer warm;
    {
      const auto engine = make_engine({"stores", 512});
      run(*engine, {prompt(0)});
      warm = run(*engine, {prompt(0)}).front();
    }
    const auto engine = make_engine({"restores", 512});
    const Answer restored = run(*engine, {prompt(0)}).front();
    EXPECT_EQ(restored.cached_tokens, (kPromptTokens - 1) / kBlockSize * kBlockSize);
    EXPECT_EQ(restored.cached_tokens, warm.cached_tokens);
    ASSERT_EQ(restored.tokens.size(), warm.tokens.size());
    for (std::size_t i = 0; i < warm.tokens.size(); ++i) {
      EXPECT_EQ(restored.tokens[i].chosen.token, warm.tokens[i].chosen.token);
      EXPECT_EQ(restored.tokens[i].chosen.logprob, warm.tokens[i].chosen.logprob);
    }
  }

  TemporaryFile file_{"f32.gguf"};
  CurrentLoader current_loader_;
  SparseOptions sparse_;
  StoreOptions store_;
  std::optional<CompressionOptions> compression_;
  std::unique_ptr<ModelRunner> runner_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<Vocabulary> vocabulary_;
  std::vector<TokenId> text_;
};

class SparseEngineModel : public EngineModel {};

TEST_P(EngineModel, TheAnswerIsTheSameHoweverItWasRun) { expect_same_however_run(); }

TEST_P(SparseEngineModel, ASparseAnswerIsTheSameHoweverItWasRun) {
  load({.token_budget = 192, .recent_window = 64});
  expect_same_however_run();
}

// Without recent tokens no window is compressed earlier where slots are short.
TEST_P(SparseEngineModel, ACompressedAnswerIsTheSameHoweverItWasRun) {
  compression_ = {.window_tokens = 64, .recent_tokens = 0, .compresses_prompt = true};
  expect_same_however_run();
  const auto engine = make_engine({"counted"});
  run(*engine, {prompt(0)});
  EXPECT_EQ(engine->stats().compression.windows, (kPromptTokens - kBlockSize) / 64);
  EXPECT_GT(engine->stats().compression.pairs_brought_back, 0);
}

// With records of kept blocks and of archived pages, from which rows select
// (engine_compress_sparse_test.cpp: windows of the answer).
TEST_P(SparseEngineModel, ACompressedAnswerThatSelectsIsTheSameHoweverItWasRun) {
  load({.token_budget = 192, .recent_window = 64});
  for (const CompressArchive archive : {CompressArchive::kR4, CompressArchive::kOff}) {
    SCOPED_TRACE(to_string(archive));
    compression_ = {
        .window_tokens = 64, .recent_tokens = 0, .compresses_prompt = true, .archive = archive};
    expect_same_however_run({Way{"home", 64, false, 0.5, true}, Way{"preempted", 512, false, 1.3}});
    const auto engine = make_engine({"counted"});
    run(*engine, {prompt(0)});
    EXPECT_EQ(engine->stats().compression.windows, (kPromptTokens - kBlockSize) / 64);
  }
}

TEST_P(SparseEngineModel, ABudgetOfTheWholeContextIsDense) {
  const Answer dense = run(*make_engine({"dense"}), {prompt(0)}).front();
  load({.token_budget = 1024});
  const Answer sparse = run(*make_engine({"sparse"}), {prompt(0)}).front();
  ASSERT_EQ(sparse.tokens.size(), dense.tokens.size());
  for (std::size_t i = 0; i < dense.tokens.size(); ++i) {
    EXPECT_EQ(sparse.tokens[i].chosen.token, dense.tokens[i].chosen.token);
    EXPECT_EQ(sparse.tokens[i].chosen.logprob, dense.tokens[i].chosen.logprob);  // bit for bit
  }
}

// Where blocks are never changes a bit of what is computed: dense and sparse, with the fast tier a
// third of what the sequence has.
TEST_P(SparseEngineModel, ResidencyChangesNoBit) {
  for (const SparseOptions& sparse :
       {SparseOptions{}, SparseOptions{.token_budget = 192, .recent_window = 64}}) {
    SCOPED_TRACE(sparse.token_budget);
    load(sparse);
    const Answer resident = run(*make_engine({"resident", 64, false}), {prompt(0)}).front();
    const auto engine = make_engine({"home", 64, false, 0.34, true});
    const Answer tiered = run(*engine, {prompt(0)}).front();
    EXPECT_GT(engine->stats().tiers.demand_misses, 0);
    ASSERT_EQ(tiered.tokens.size(), resident.tokens.size());
    for (std::size_t i = 0; i < resident.tokens.size(); ++i) {
      EXPECT_EQ(tiered.tokens[i].chosen.token, resident.tokens[i].chosen.token);
      EXPECT_EQ(tiered.tokens[i].chosen.logprob, resident.tokens[i].chosen.logprob);
    }
  }
}

// The KV of a sparse answer is not that of the same tokens in a prompt, so it is not offered.
TEST_P(SparseEngineModel, AConversationAfterASparseAnswerIsAsWithoutTheCache) {
  load({.token_budget = 192, .recent_window = 64});
  const auto engine = make_engine({"cached"});
  const Answer first = run(*engine, {prompt(0, 318)}).front();  // the answer fills a block
  std::vector<TokenId> longer = prompt(0, 318);
  for (const GeneratedToken& token : first.tokens) {
    longer.push_back(token.chosen.token);
  }
  const auto more = prompt(700, 40);
  longer.insert(longer.end(), more.begin(), more.end());
  const Answer continued = run(*engine, {longer}).front();
  EXPECT_EQ(continued.cached_tokens, 304);
  expect_same(continued, run(*make_engine({"fresh", 512, false}), {longer}).front());
}

// Cases B5: the same prompt four times, and lengths around block borders.
TEST_P(EngineModel, APromptThatIsFoundGivesTheSameAnswer) {
  const auto engine = make_engine({"cached"});
  const Answer cold = run(*engine, {prompt(0)}).front();
  EXPECT_EQ(cold.cached_tokens, 0);
  for (int repeat = 1; repeat < 4; ++repeat) {
    const Answer warm = run(*engine, {prompt(0)}).front();
    EXPECT_EQ(warm.cached_tokens, (kPromptTokens - 1) / kBlockSize * kBlockSize);
    expect_same(warm, cold);
  }
  // A conversation goes on: prompt, answer, and something new.
  std::vector<TokenId> longer = prompt(0);
  for (const GeneratedToken& token : cold.tokens) {
    longer.push_back(token.chosen.token);
  }
  const auto more = prompt(700, 40);
  longer.insert(longer.end(), more.begin(), more.end());
  const Answer continued = run(*engine, {longer}).front();
  EXPECT_GE(continued.cached_tokens, kPromptTokens);
  expect_same(continued, run(*make_engine({"fresh", 512, false}), {longer}).front());
  for (const int length : {16, 17}) {
    SCOPED_TRACE(length);
    const Answer first = run(*engine, {prompt(1000 + length * 20, length)}).front();
    const Answer second = run(*engine, {prompt(1000 + length * 20, length)}).front();
    EXPECT_EQ(second.cached_tokens, (length - 1) / kBlockSize * kBlockSize);
    expect_same(second, first);
  }
}

TEST_P(EngineModel, APromptThatAnEarlierEngineStoredGivesTheSameBits) {
  expect_same_bits_when_restored();
}

// Its key index is made again from what comes back.
TEST_P(SparseEngineModel, APromptThatAnEarlierSparseEngineStoredGivesTheSameBits) {
  load({.token_budget = 192, .recent_window = 64});
  expect_same_bits_when_restored();
}

INSTANTIATE_TEST_SUITE_P(Models, SparseEngineModel, testing::Values(kSmolLm2),
                         [](const auto&) { return "SmolLM2"; });
INSTANTIATE_TEST_SUITE_P(Models, EngineModel, testing::Values(kSmolLm2, kGemma3),
                         [](const auto& test) {
                           return test.param == kSmolLm2 ? "SmolLM2" : "Gemma3";
                         });

}  // namespace engine_model_test
}  // namespace karez::test
