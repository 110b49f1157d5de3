// One answer above a home tier: it is that of one with room, and ends where the fast tier does.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/attached_key_index.h"
#include "engine/block_loader.h"
#include "engine/generator.h"
#include "engine/window_compressor.h"
#include "kv/tier/host_tier.h"
#include "support/fake_model_runner.h"
#include "support/paged_fake_runner.h"

namespace karez::test {
namespace generator_home_test {

constexpr int kVocabSize = 40;
constexpr std::int64_t kWithRoom = 8000;  // slots

class BestToken final : public Sampler {
 public:
  Expected<std::int32_t> sample(std::span<const float> logits) override {
    return static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin());
  }
  void accept(std::int32_t) override {}
};

struct Answer {
  std::string text;  // a letter for each token
  std::optional<FinishReason> reason;
};

class GeneratorHome : public testing::Test {
 protected:
  GeneratorHome() {
    options_.context_tokens = 1250;
    options_.chunk_tokens = 64;
  }

  // A slot is a block of one layer: there is one KV head.
  void start(int num_layers, std::int64_t num_slots, bool with_home) {
    spec_ = PagedFakeRunner::kv_spec(std::vector<int>(static_cast<std::size_t>(num_layers), 0));
    const auto slot_bytes = static_cast<std::int64_t>(spec_.slot_bytes());
    std::unique_ptr<Tier> home;
    if (with_home) {
      home = HostTier::create({.block_bytes = spec_.slot_bytes(),
                               .capacity_bytes = kWithRoom * slot_bytes,
                               .num_workers = 0})
                 .value();
    }
    kv_ = KVCacheManager::create(spec_, num_slots * slot_bytes, std::move(home)).value();
  }
  Answer run(ModelRunner& runner, int prompt_tokens, const KeyIndex* key_index = nullptr,
             BlockLoader* loader = nullptr, WindowCompressor* compressor = nullptr) {
    std::vector<TokenId> prompt;
    for (int i = 0; i < prompt_tokens; ++i) {
      prompt.push_back(i * 7 % kVocabSize);
    }
    Answer answer;
    GeneratorCallbacks callbacks;
    callbacks.on_text = [&](std::string_view shown) {
      answer.text += shown;
      return true;
    };
    BestToken sampler;
    const std::atomic<bool> cancelled = false;
    const TokenText letters = {[](TokenId t) { return std::string(1, static_cast<char>('A' + t)); },
                               [](TokenId) { return false; }};
    const auto result = Generator(runner, *kv_, letters, key_index, loader, nullptr, compressor)
                            .run(prompt, options_, sampler, callbacks, cancelled);
    EXPECT_TRUE(result) << result.error().to_string();
    if (result) {
      answer.reason = result->finish_reason;
    }
    return answer;
  }
  // Of a runner that reads all blocks of each layer.
  Answer run_paged(int prompt_tokens, const KeyIndex* key_index = nullptr,
                   WindowCompressor* compressor = nullptr) {
    BlockLoader loader;
    PagedFakeRunner runner(kVocabSize);
    runner.selection_listener = &loader;
    const Answer answer = run(runner, prompt_tokens, key_index, &loader, compressor);
    if (kv_->residency() != nullptr) {
      EXPECT_EQ(kv_->residency()->stats().blocks_lost, 0);
    }
    return answer;
  }

  GeneratorOptions options_;
  KVCacheSpec spec_;
  std::unique_ptr<KVCacheManager> kv_;
};

// Beside the blocks of one layer there is room to write two blocks of all of them, and not the four
// of a whole chunk.
TEST_F(GeneratorHome, APromptWhoseLayersHardlyFitStreamsInSmallChunks) {
  constexpr int kManyLayers = 12;
  options_.max_tokens = 20;
  start(kManyLayers, kWithRoom, false);
  const std::string wanted = run_paged(500).text;
  EXPECT_EQ(wanted.size(), 20U);
  // One layer of 519 tokens, the step at hand and the one before, and a spare one.
  start(kManyLayers, 33 + 2 * kManyLayers + 1, true);
  EXPECT_EQ(run_paged(500).text, wanted);
}

// Of 60 slots one is spare and four are written: the others hold what a layer reads.
constexpr int kLayers = 4;
constexpr int kSlots = 60;
constexpr int kReadBlocks = kSlots - 1 - kLayers;
// What a row of the last block that fits has generated, and the one behind it.
constexpr std::size_t tokens_of(int full_blocks, int prompt_tokens) {
  return static_cast<std::size_t>((full_blocks + 1) * kBlockSize - prompt_tokens + 1);
}

// With an index too: the runner reads everything all the same, as dense first layers do.
TEST_F(GeneratorHome, AnAnswerEndsWhenALayerOfItNoLongerFits) {
  start(kLayers, kWithRoom, false);
  const std::string wanted = run_paged(100).text;
  for (const bool has_index : {false, true}) {
    start(kLayers, kSlots, true);
    const auto index =
        attach_key_index(*kv_, {.token_budget = has_index ? 192 : 0, .dense_layers = 1}).value();
    const Answer answer = run_paged(100, index.get());
    EXPECT_EQ(answer.reason, FinishReason::kLength);
    EXPECT_EQ(answer.text.size(), tokens_of(kReadBlocks, 100));
    EXPECT_EQ(answer.text, wanted.substr(0, answer.text.size()));
  }
}

TEST_F(GeneratorHome, AnAnswerWhoseRowsSelectEndsWhenWhatTheyReadDoesNotFit) {
  for (const int read_blocks : {20, kReadBlocks, kReadBlocks + 1}) {
    options_.decode_read_tokens = read_blocks * kBlockSize;
    start(kLayers, kSlots, true);
    FakeModelRunner runner(kVocabSize, kLayers, [](std::span<const TokenId>) { return 7; });
    const Answer answer = run(runner, 100);
    EXPECT_EQ(answer.reason, FinishReason::kLength);
    EXPECT_EQ(answer.text.size(), read_blocks <= kReadBlocks
                                      ? static_cast<std::size_t>(options_.context_tokens - 100)
                                      : tokens_of(kReadBlocks, 100));
  }
}

// 64 pairs become two blocks of kept ones, and two pages in one block. What is packed gives way to
// the row before it is due.
TEST_F(GeneratorHome, AnAnswerWithArchivedWindowsEndsWhenItsBlocksNoLongerFit) {
  CompressionOptions compression;
  compression.window_tokens = 64;
  compression.recent_tokens = 32;
  compression.score = CompressScore::kRandom;
  constexpr int kPrompt = 64;
  const auto compressed = [&] {
    options_.compression = schedule_in(spec_, compression, kPrompt);
    WindowCompressor compressor(*kv_, nullptr, compression, WindowCompressor::Attention{});
    return run_paged(kPrompt, nullptr, &compressor);
  };
  start(kLayers, kWithRoom, false);
  const std::string wanted = compressed().text;
  start(kLayers, kSlots, true);
  const Answer answer = compressed();
  EXPECT_EQ(answer.reason, FinishReason::kLength);
  // 16 windows have one block less.
  EXPECT_EQ(answer.text.size(), tokens_of(kReadBlocks + 16, kPrompt));
  EXPECT_EQ(answer.text, wanted.substr(0, answer.text.size()));
}

}  // namespace generator_home_test
}  // namespace karez::test
