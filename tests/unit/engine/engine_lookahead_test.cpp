// The engine with a small real model, a home tier and a fast tier that is much too small: whatever
// is hinted, by whom and how well, the tokens are those of a fast tier with room for everything.
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/attached_key_index.h"
#include "engine/engine.h"
#include "engine/home_tier.h"
#include "engine/self_proposer.h"
#include "kv/tier/host_tier.h"
#include "kv/tier/throttled_tier.h"
#include "model/ggml_model_runner.h"
#include "support/fake_draft_proposer.h"
#include "support/fake_vocabulary.h"
#include "support/random_model.h"
#include "support/temporary_file.h"

namespace karez::test {
namespace engine_lookahead_test {

constexpr int kVocabSize = 300;
constexpr int kPromptTokens = 600;
constexpr int kGenerated = 16;
constexpr int kNumRequests = 3;

using Tokens = std::vector<TokenId>;

// Passes on, looks at the store before each step, and may hint blocks that nobody has asked for.
// fetch_cap_bytes: that no step prefetches more than; 0: any.
class WatchingRunner final : public ModelRunner, public SelectionListener {
 public:
  WatchingRunner(BlockLoader& loader, bool hints_anything, std::int64_t fetch_cap_bytes)
      : loader_(loader), hints_anything_(hints_anything), fetch_cap_bytes_(fetch_cap_bytes) {}
  void set_runner(std::unique_ptr<ModelRunner> runner) { runner_ = std::move(runner); }

  const ModelConfig& config() const override { return runner_->config(); }
  Expected<std::span<const float>> forward(const ForwardBatch& batch, KVCacheManager& kv) override {
    EXPECT_EQ(kv.check_invariants(), "");
    if (fetch_cap_bytes_ > 0) {
      const std::int64_t before =
          std::exchange(bytes_fetched_, kv.residency()->stats().prefetch.bytes_fetched);
      EXPECT_LE(bytes_fetched_ - before, fetch_cap_bytes_) << "in the step before";
    }
    batch_ = &batch;
    kv_ = &kv;
    return runner_->forward(batch, kv);
  }
  StepTimes take_step_times() override { return runner_->take_step_times(); }

  void on_selected(int layer, std::span<SelectedBlocks> selected) override {
    loader_.on_selected(layer, selected);
    Residency* residency = kv_->residency();
    if (!hints_anything_ || residency == nullptr) {
      return;
    }
    for (int i = 0; i < 20; ++i) {
      const auto at = [&](std::size_t size) { return static_cast<std::size_t>(random_() % size); };
      const BlockTableView table = batch_->sequences[at(batch_->sequences.size())].tables[0];
      residency->hint(static_cast<int>(at(static_cast<std::size_t>(kv_->spec().num_layers))),
                      static_cast<int>(at(static_cast<std::size_t>(kv_->spec().num_kv_heads))),
                      table[at(table.size())], kLookaheadSources[at(kLookaheadSources.size())]);
    }
    residency->prefetch();
  }
  int num_to_rank(int layer, int kv_head) const override {
    return loader_.num_to_rank(layer, kv_head);
  }
  void on_ranked(int layer, std::span<const RankedBlocks> ranked) override {
    loader_.on_ranked(layer, ranked);
  }

 private:
  std::unique_ptr<ModelRunner> runner_;
  BlockLoader& loader_;
  bool hints_anything_;
  std::int64_t fetch_cap_bytes_;
  std::int64_t bytes_fetched_ = 0;  // until the step at hand
  std::mt19937 random_{3};
  const ForwardBatch* batch_ = nullptr;
  KVCacheManager* kv_ = nullptr;
};

enum class Drafter { kNone, kHalfRight, kSelf };

struct Way {
  std::string sources = "off";
  Drafter drafter = Drafter::kNone;
  bool has_home = true;
  bool hints_anything = false;
  bool is_slow = false;
  std::int64_t fetch_cap_bytes = 0;
};

class EngineLookahead : public testing::Test {
 protected:
  EngineLookahead() {
    random_model({.architecture = "llama", .num_layers = 3, .vocab_size = kVocabSize})
        .write(file_.path());
    for (int i = 0; i < kNumRequests; ++i) {
      prompts_.emplace_back();
      for (int t = 0; t < kPromptTokens + 7 * i; ++t) {
        prompts_.back().push_back(3 + (i * 31 + t * 7 + t / 11) % 250);
      }
    }
  }

  std::unique_ptr<Speculation> speculation(const Way& way, ModelRunner& runner, KVCacheManager& kv,
                                           const KeyIndex* index, BlockLoader* loader) {
    std::unique_ptr<DraftProposer> proposer;
    if (way.drafter == Drafter::kNone) {
      return nullptr;
    }
    if (way.drafter == Drafter::kSelf) {
      proposer = std::make_unique<SelfProposer>(runner, kv, index, loader);
    } else {
      proposer = std::make_unique<FakeDraftProposer>(
          [this](const DraftQuery& query) { return half_right(query); });
    }
    return std::make_unique<Speculation>(SpeculationOptions{.max_drafts = 3, .min_drafts = 3},
                                         std::move(proposer));
  }
  // What comes, but for one token of three.
  Tokens half_right(const DraftQuery& query) const {
    for (std::size_t i = 0; i < prompts_.size(); ++i) {
      Tokens whole = prompts_[i];
      whole.insert(whole.end(), expected_[i].begin(), expected_[i].end());
      if (whole.size() > query.tokens.size() &&
          std::equal(query.tokens.begin(), query.tokens.end(), whole.begin())) {
        whole.erase(whole.begin(), whole.begin() + std::ssize(query.tokens));
        whole.resize(std::min(whole.size(), std::size_t{3}));
        whole[query.tokens.size() % whole.size()] = 17;
        return whole;
      }
    }
    ADD_FAILURE() << "a sequence that is no answer to any prompt";
    return {};
  }

  static std::unique_ptr<Tier> host(const KVCacheSpec& spec, const Way& way) {
    auto tier = HostTier::create({.block_bytes = spec.slot_bytes(),
                                  .capacity_bytes = std::int64_t{1} << 24,
                                  .num_workers = 1})
                    .value();
    if (!way.is_slow) {
      return tier;
    }
    return std::make_unique<ThrottledTier>(
        std::move(tier),
        Throttle{.bytes_per_second = 32 << 20, .latency = std::chrono::microseconds(100)});
  }

  // Tokens by request.
  std::vector<Tokens> run(const Way& way) {
    SparseOptions sparse;
    sparse.token_budget = 96;
    sparse.recent_window = 32;
    LookaheadOptions lookahead{parse_lookahead(way.sources).value(), way.fetch_cap_bytes};
    add_what_lookahead_needs(lookahead.sources, sparse);
    auto loader = std::make_unique<BlockLoader>(OnMiss{}, lookahead);
    auto runner =
        std::make_unique<WatchingRunner>(*loader, way.hints_anything, way.fetch_cap_bytes);
    runner->set_runner(load_model(file_.path(), {.num_threads = 1,
                                                 .kv_type = KvType::kF32,
                                                 .sparse = sparse,
                                                 .selection_listener = runner.get()})
                           .value());
    const KVCacheSpec spec = runner->config().kv_cache_spec(KvType::kF32);
    EngineOptions options;
    options.context_tokens = 700;
    options.prefix_cache = false;
    options.scheduler.max_num_batched_tokens = 64;
    std::int64_t slots = spec.slots_for_sequence(options.context_tokens, 64) * kNumRequests;
    if (way.has_home) {
      // All three decode side by side with a third of their KV in the fast tier.
      options.scheduler.decode_floor_tokens = decode_floor_tokens(sparse);
      options.scheduler.decode_read_tokens = decode_read_tokens(sparse, spec);
      slots /= 3;
    }
    auto owned_kv =
        KVCacheManager::create(spec, slots * static_cast<std::int64_t>(spec.slot_bytes()),
                               way.has_home ? host(spec, way) : nullptr)
            .value();
    KVCacheManager& kv = *owned_kv;
    auto index = attach_key_index(kv, sparse).value();
    auto drafts = speculation(way, *runner, kv, index.get(), loader.get());
    auto engine = Engine::create(options, std::move(runner), std::move(owned_kv), vocabulary_,
                                 std::move(index), std::move(loader), std::move(drafts))
                      .value();
    std::vector<Tokens> answers = ask(*engine);
    engine->shutdown(std::chrono::seconds(60));
    stats_ = engine->stats();
    if (kv.residency() != nullptr) {
      kv.residency()->settle();
      kv.residency()->advance();
    }
    EXPECT_EQ(kv.check_invariants(), "");
    EXPECT_EQ(kv.stats().slots_used, 0);
    if (kv.residency() != nullptr) {
      EXPECT_EQ(kv.residency()->num_fetching_slots(), 0);
      EXPECT_EQ(kv.residency()->stats().home_bytes_used, 0);
      prefetch_ = kv.residency()->stats().prefetch;
    }
    return answers;
  }

  std::vector<Tokens> ask(Engine& engine) const {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<Tokens> answers(prompts_.size());
    std::size_t num_open = prompts_.size();
    for (std::size_t i = 0; i < prompts_.size(); ++i) {
      Request request;
      request.prompt = prompts_[i];
      request.max_tokens = kGenerated;
      request.ignore_eos = true;
      request.sampling.temperature = 0;
      const auto id = engine.submit(std::move(request), [&, i](const GenerationEvent& event) {
        const std::lock_guard lock(mutex);
        for (const GeneratedToken& token : event.tokens) {
          answers[i].push_back(token.chosen.token);
        }
        num_open -= event.finished ? 1 : 0;
        changed.notify_all();
      });
      EXPECT_TRUE(id) << id.error().to_string();
    }
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return num_open == 0; });
    return answers;
  }

  void find_expected() {
    expected_ = run({.has_home = false});
    for (const Tokens& answer : expected_) {
      ASSERT_EQ(answer.size(), std::size_t{kGenerated});
    }
    EXPECT_NE(expected_[0], expected_[1]);
  }

  TemporaryFile file_{"engine_lookahead.gguf"};
  FakeVocabulary vocabulary_{kVocabSize};
  std::vector<Tokens> prompts_;
  std::vector<Tokens> expected_;
  EngineStats stats_;
  PrefetchStats prefetch_;
};

TEST_F(EngineLookahead, EverySourceGivesTheTokensOfOneThatHasRoomForEverything) {
  find_expected();
  for (const char* sources : {"off", "previous", "layer", "previous,layer"}) {
    EXPECT_EQ(run({.sources = sources}), expected_) << sources;
    EXPECT_GT(stats_.tiers.demand_misses, 0) << sources;
    for (const LookaheadSource source : kLookaheadSources) {
      const bool is_on = parse_lookahead(sources).value().contains(source);
      EXPECT_EQ(prefetch_.of(source).predicted > 0, is_on) << sources << " " << to_string(source);
    }
  }
}

TEST_F(EngineLookahead, DraftsThatAreHalfRightChangeNoToken) {
  find_expected();
  EXPECT_EQ(run({.drafter = Drafter::kHalfRight, .has_home = false}), expected_);
  for (const char* sources : {"off", "draft", "previous,draft,layer"}) {
    EXPECT_EQ(run({.sources = sources, .drafter = Drafter::kHalfRight}), expected_) << sources;
    EXPECT_GT(stats_.speculation.accepted_tokens, 0);
    EXPECT_LT(stats_.speculation.accepted_tokens, stats_.speculation.draft_tokens);
    EXPECT_EQ(prefetch_.of(LookaheadSource::kDraft).predicted > 0,
              parse_lookahead(sources).value().contains(LookaheadSource::kDraft));
  }
}

TEST_F(EngineLookahead, DraftsOfTheModelItselfChangeNoToken) {
  find_expected();
  EXPECT_EQ(run({.drafter = Drafter::kSelf, .has_home = false}), expected_);
  for (const char* sources : {"self", "previous,draft,self,layer"}) {
    EXPECT_EQ(run({.sources = sources, .drafter = Drafter::kSelf}), expected_) << sources;
    EXPECT_GT(stats_.speculation.draft_tokens, 0);
    EXPECT_EQ(prefetch_.of(LookaheadSource::kSelf).predicted > 0,
              parse_lookahead(sources).value().contains(LookaheadSource::kSelf));
  }
}

TEST_F(EngineLookahead, HintsAtRandomCostTimeAndNoToken) {
  find_expected();
  EXPECT_EQ(run({.hints_anything = true}), expected_);
  // More than one for each step, of which there are about 30 with the prompts, and 16 with answers.
  EXPECT_GT(prefetch_.total().fetched, 100);
  EXPECT_EQ(run({.sources = "previous,layer",
                 .hints_anything = true,
                 .is_slow = true,
                 .fetch_cap_bytes = stats_.slot_bytes}),
            expected_);
  EXPECT_GT(prefetch_.total().fetched, 0);
}

TEST_F(EngineLookahead, ASlowTierAndASmallCapGiveTheSameTokens) {
  find_expected();
  EXPECT_EQ(run({.sources = "previous,draft,self,layer",
                 .drafter = Drafter::kSelf,
                 .is_slow = true,
                 .fetch_cap_bytes = stats_.slot_bytes}),
            expected_);
  EXPECT_GT(prefetch_.total().fetched, 0);
}

}  // namespace engine_lookahead_test
}  // namespace karez::test
