// Sparse attention inside a model's graph: the select node, its listener, its times.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <optional>

#include "kv/kv_cache_manager.h"
#include "model/ggml_model_runner.h"
#include "support/random_model.h"

namespace karez {
namespace sparse_runner_test {

using test::random_model;
using test::RandomModelSpec;

struct CountingListener final : SelectionListener {
  void on_selected(int layer, std::span<SelectedBlocks> selected) override {
    layers.push_back(layer);
    num_selected += selected.size();
  }
  std::vector<int> layers;
  std::size_t num_selected = 0;
};

struct Generated {
  std::vector<float> logits;
  StepTimes times;
};

constexpr int kPromptTokens = 200;

// A prompt, then five generated rows, which may be sparse.
Generated generate(const RandomModelSpec& spec, const SparseOptions& sparse, bool with_index,
                   SelectionListener* listener) {
  const std::filesystem::path path = std::filesystem::temp_directory_path() /
                                     ("karez_sparse_model_" + std::to_string(getpid()) + ".gguf");
  random_model(spec).write(path);
  auto runner =
      load_model(path, {.num_threads = 2, .sparse = sparse, .selection_listener = listener});
  std::filesystem::remove(path);
  if (!runner) {
    ADD_FAILURE() << runner.error().to_string();
    return {};
  }
  const KVCacheSpec kv_spec = (*runner)->config().kv_cache_spec(KvType::kBf16);
  auto kv = KVCacheManager::create(kv_spec, std::int64_t{1} << 24).value();
  std::optional<KeyIndex> index;
  if (with_index) {
    index.emplace(KeyIndex::create(kv_spec, sparse.block_index, block_id_ranges(*kv)).value());
  }
  const SequenceId sequence = kv->open();
  Generated run;
  for (int step = 0; step <= 5; ++step) {
    ForwardBatch batch;
    SequenceRows rows;
    rows.first_position = kv->num_tokens(sequence);
    rows.num_rows = step == 0 ? kPromptTokens : 1;
    rows.first_sparse_position = kPromptTokens;
    EXPECT_TRUE(kv->extend(sequence, rows.num_rows));
    for (int group = 0; group < static_cast<int>(kv->layer_groups().size()); ++group) {
      rows.tables.push_back(kv->table(sequence, group));
    }
    for (int i = 0; i < rows.num_rows; ++i) {
      batch.tokens.push_back(3 + (rows.first_position + i) * 7 % 250);
    }
    batch.output_rows = {rows.num_rows - 1};
    batch.sequences = {rows};
    batch.key_index = index ? &*index : nullptr;
    const auto logits = (*runner)->forward(batch, *kv);
    if (!logits) {
      ADD_FAILURE() << logits.error().to_string();
      return {};
    }
    run.logits.insert(run.logits.end(), logits->begin(), logits->end());
  }
  run.times = (*runner)->take_step_times();
  return run;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::vector<RandomModelSpec> specs() {
  return {{.architecture = "llama", .num_layers = 3},
          {.architecture = "gemma3", .num_layers = 7, .sliding_window = 32}};
}

TEST(SparseRunner, ABudgetOfTheContextGivesTheLogitsOfTheDenseModel) {
  for (const RandomModelSpec& spec : specs()) {
    const Generated dense = generate(spec, {}, false, nullptr);
    EXPECT_EQ(dense.times.select, 0.0);
    SparseOptions sparse;
    sparse.token_budget = 4096;
    EXPECT_TRUE(same_bits(generate(spec, sparse, true, nullptr).logits, dense.logits));
  }
}

TEST(SparseRunner, ASmallBudgetChangesGeneratedRowsOnlyAndTellsTheListenerOfEveryLayer) {
  for (const RandomModelSpec& spec : specs()) {
    const Generated dense = generate(spec, {}, false, nullptr);
    SparseOptions sparse;
    sparse.token_budget = 64;
    sparse.recent_window = 16;
    CountingListener listener;
    const Generated run = generate(spec, sparse, true, &listener);
    ASSERT_EQ(run.logits.size(), dense.logits.size());
    const auto prompt_end = static_cast<std::ptrdiff_t>(dense.logits.size() / 6);
    EXPECT_TRUE(same_bits({run.logits.begin(), run.logits.begin() + prompt_end},
                          {dense.logits.begin(), dense.logits.begin() + prompt_end}));
    EXPECT_FALSE(same_bits(run.logits, dense.logits));
    for (const float logit : run.logits) {
      ASSERT_TRUE(std::isfinite(logit));
    }
    EXPECT_EQ(listener.layers.size(), 6U * static_cast<std::size_t>(spec.num_layers));
    const std::size_t full_layers = spec.sliding_window > 0 ? 1 : 3;
    EXPECT_EQ(listener.num_selected, 5U * full_layers * 2U);
    EXPECT_GT(run.times.select, 0.0);
    EXPECT_GT(run.times.attend, 0.0);
    EXPECT_LT(run.times.select + run.times.attend, run.times.attention);
    EXPECT_GT(run.times.index_read_bytes, 0);
  }
}

}  // namespace sparse_runner_test
}  // namespace karez
