#include "engine/key_centres.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "attention/block_store.h"
#include "engine/attached_key_index.h"
#include "engine/eval_store.h"
#include "model/ggml_model_runner.h"
#include "model/tokenizer.h"
#include "support/random_model.h"
#include "support/temporary_file.h"

namespace karez {
namespace {

struct KeyCentres : testing::Test {
  std::unique_ptr<ModelRunner> load(const test::RandomModelSpec& spec, KvType type = KvType::kF32) {
    test::random_model(spec).write(file.path());
    ModelRunnerOptions options;
    options.kv_type = type;
    auto runner = load_model(file.path(), options);
    EXPECT_TRUE(runner) << runner.error().to_string();
    return std::move(*runner);
  }

  test::TemporaryFile file{"centres.gguf"};
  std::vector<TokenId> tokens = [] {
    std::vector<TokenId> result;
    for (int i = 0; i < 100; ++i) {
      result.push_back(10 + i * 37 % 200);
    }
    return result;
  }();
};

TEST_F(KeyCentres, AreTheMeanOfAllWholeBlocksButTheFirst) {
  const auto runner = load({});
  const auto centres = measure_key_centres(*runner, KvType::kF32, tokens, 24);
  ASSERT_TRUE(centres);
  const KVCacheSpec spec = runner->config().kv_cache_spec(KvType::kF32);
  ASSERT_EQ(centres->size(), static_cast<std::size_t>(spec.num_layers * spec.num_kv_heads) * 16);

  auto store = EvalStore::create(spec, std::nullopt, 100, 0, 128, {});
  ASSERT_TRUE(store);
  EvalSequence sequence(*store);
  ASSERT_TRUE(
      sequence.append(*runner, std::span(tokens).first(96), SequenceRows::kNeverSparse, false));
  const KVLayerView view = store->kv->layer(1);
  std::vector<double> expected(16, 0.0);
  std::vector<float> keys(16 * 16);
  for (std::size_t block = 1; block < 6; ++block) {
    load_block_keys(KvType::kF32, 16, view.slot(1, sequence.table(0)[block]), keys.data());
    for (std::size_t i = 0; i < keys.size(); ++i) {
      expected[i % 16] += static_cast<double>(keys[i]) / 80;
    }
  }
  const std::size_t first = static_cast<std::size_t>(1 * spec.num_kv_heads + 1) * 16;
  for (std::size_t i = 0; i < 16; ++i) {
    EXPECT_NEAR(static_cast<double>((*centres)[first + i]), expected[i], 1e-5);
  }
}

TEST_F(KeyCentres, OfANarrowTypeAreNearlyTheSame) {
  const auto wide = measure_key_centres(*load({}), KvType::kF32, tokens, 512);
  for (const KvType type : {KvType::kBf16, KvType::kQ8_0}) {
    const auto narrow = measure_key_centres(*load({}, type), type, tokens, 512);
    ASSERT_TRUE(wide && narrow);
    EXPECT_THAT(*narrow, testing::Pointwise(testing::FloatNear(0.05F), *wide));
  }
}

TEST_F(KeyCentres, OfLayersWithAWindowAreZero) {
  test::RandomModelSpec spec;
  spec.architecture = "gemma3";
  spec.num_layers = 2;
  spec.sliding_window = 32;
  spec.sliding_window_layers = {true, false};
  const auto runner = load(spec);
  const auto centres = measure_key_centres(*runner, KvType::kF32, tokens, 24);
  ASSERT_TRUE(centres);
  const auto half = centres->begin() + static_cast<std::ptrdiff_t>(centres->size() / 2);
  EXPECT_TRUE(std::all_of(centres->begin(), half, [](float x) { return x == 0; }));
  EXPECT_TRUE(std::any_of(half, centres->end(), [](float x) { return x != 0; }));
}

TEST_F(KeyCentres, NeedTwoBlocksOfTokens) {
  const auto runner = load({});
  const auto centres = measure_key_centres(*runner, KvType::kF32, std::span(tokens).first(31), 24);
  ASSERT_FALSE(centres);
  EXPECT_THAT(centres.error().message(), testing::HasSubstr("31 tokens; 32 are needed"));
}

struct AttachedKeyIndex : KeyCentres {
  // What generate, serve and bench do.
  std::unique_ptr<KeyIndex> attach(ModelRunner& runner, const SparseOptions& sparse) {
    tokenizer = std::move(Tokenizer::load(file.path()).value());
    const KVCacheSpec spec = runner.config().kv_cache_spec(KvType::kF32);
    kv = std::move(
        KVCacheManager::create(spec, 64 * static_cast<std::int64_t>(spec.slot_bytes())).value());
    auto index = attach_key_index(*kv, sparse, runner, *tokenizer, 200, 1000);
    EXPECT_TRUE(index) << index.error().to_string();
    return std::move(*index);
  }

  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<KVCacheManager> kv;
};

TEST_F(AttachedKeyIndex, HasTheCentresOfItsModel) {
  const auto runner = load({});
  const auto index = attach(*runner, {.token_budget = 512});
  ASSERT_NE(index, nullptr);
  auto text = tokenizer->tokenize(key_centre_text(), true, false);
  ASSERT_TRUE(text);
  ASSERT_GT(text->size(), static_cast<std::size_t>(kMaxKeyCentreTokens));
  text->resize(kMaxKeyCentreTokens);
  const auto centres = measure_key_centres(*runner, KvType::kF32, *text, 512);
  ASSERT_TRUE(centres);
  const std::size_t layer_floats = centres->size() / 2;
  for (int layer = 0; layer < 2; ++layer) {
    const float* begin = index->view(layer).centres();
    ASSERT_NE(begin, nullptr);
    const auto expected =
        std::span(*centres).subspan(static_cast<std::size_t>(layer) * layer_floats, layer_floats);
    EXPECT_THAT(std::span(begin, layer_floats),
                testing::Pointwise(testing::FloatNear(1e-4F), expected));
    EXPECT_TRUE(std::ranges::any_of(expected, [](float x) { return x > 0.01F; }));
  }
}

TEST_F(AttachedKeyIndex, MeasuresNothingThatNoOneUses) {
  const auto runner = load({});
  EXPECT_EQ(attach(*runner, {}), nullptr);
  const auto index = attach(*runner, {.token_budget = 512, .block_index = KeyIndexKind::kMinMax});
  EXPECT_EQ(index->view(0).centres(), nullptr);
  EXPECT_EQ(runner->take_step_times().steps, 0);
}

TEST_F(AttachedKeyIndex, OfAModelWithATinyContextHasNoCentres) {
  test::RandomModelSpec spec;
  spec.context_length = 16;
  const auto runner = load(spec);
  EXPECT_EQ(attach(*runner, {.token_budget = 512})->view(0).centres(), nullptr);
}

}  // namespace
}  // namespace karez
