// Foresight nodes in a model's graph: they guess what the next layer reads, and change nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kv/kv_cache_manager.h"
#include "kv/residency.h"
#include "kv/tier/host_tier.h"
#include "model/ggml_model_runner.h"
#include "support/random_model.h"
#include "support/temporary_file.h"

namespace karez {
namespace rank_ahead_test {

using test::GgufImage;
using test::random_model;
using test::RandomModelSpec;
using test::TemporaryFile;

constexpr int kPromptTokens = 400;
constexpr int kSteps = 3;
constexpr int kWanted = 64;

using ListKey = std::tuple<int, int, int, int>;  // layer, sequence, position, KV head

// Loads what each layer reads; keeps what was missing of the lists, and what had been guessed.
class Recorder final : public SelectionListener {
 public:
  void begin_step(KVCacheManager& kv, std::span<const SequenceRows> sequences) {
    kv_ = &kv;
    sequences_ = sequences;
    if (kv.residency() != nullptr) {
      kv.residency()->begin_step();
    }
  }
  void end_step() {
    if (kv_->residency() != nullptr) {
      kv_->residency()->end_step();
    }
  }

  void on_selected(int layer, std::span<SelectedBlocks> selected) override {
    events.emplace_back("selected", layer);
    num_lists += selected.size();
    Residency* residency = kv_->residency();
    if (residency == nullptr) {
      return;
    }
    residency->begin_layer(layer);
    for (const SelectedBlocks& list : selected) {
      std::vector<std::int32_t>& lacks =
          missing[{layer, list.sequence, list.position, list.kv_head}];
      for (const std::int32_t entry : list.blocks) {
        const BlockId block = table(list.sequence)[static_cast<std::size_t>(entry)];
        if (residency->need(list.kv_head, block)) {
          lacks.push_back(entry);
        }
      }
    }
    if (selected.empty()) {
      need_all(*residency);
    }
    EXPECT_TRUE(residency->load().empty());
  }
  int num_to_rank(int /*layer*/, int kv_head) const override { return kWanted + kv_head; }
  void on_ranked(int layer, std::span<const RankedBlocks> ranked) override {
    events.emplace_back("ranked", layer);
    for (const RankedBlocks& list : ranked) {
      guessed[{layer, list.sequence, list.position, list.kv_head}] = {list.blocks.begin(),
                                                                      list.blocks.end()};
    }
  }

  std::vector<std::pair<std::string, int>> events;
  std::size_t num_lists = 0;
  std::map<ListKey, std::vector<std::int32_t>> missing;
  std::map<ListKey, std::vector<std::int32_t>> guessed;

 private:
  BlockTableView table(int sequence) const {
    return sequences_[static_cast<std::size_t>(sequence)].tables[0];
  }
  void need_all(Residency& residency) const {
    for (const SequenceRows& rows : sequences_) {
      const int end = rows.first_position + rows.num_rows;
      for (int entry = 0; entry * kBlockSize < end; ++entry) {
        for (int head = 0; head < kv_->spec().num_kv_heads; ++head) {
          residency.need(head, rows.tables[0][static_cast<std::size_t>(entry)]);
        }
      }
    }
  }

  KVCacheManager* kv_ = nullptr;
  std::span<const SequenceRows> sequences_;
};

SparseOptions sparse(bool rank_ahead) {
  SparseOptions options;
  options.token_budget = 128;
  options.recent_window = 32;
  options.rank_ahead = rank_ahead;
  return options;
}

// A prompt, then rows that select; between steps nothing but the last block stays in the fast tier
// where there is a home.
std::vector<float> generate(const std::string& path, bool rank_ahead, bool has_home,
                            Recorder& recorder) {
  auto runner = load_model(path, {.num_threads = 2,
                                  .kv_type = KvType::kF32,
                                  .sparse = sparse(rank_ahead),
                                  .selection_listener = &recorder});
  if (!runner) {
    ADD_FAILURE() << runner.error().to_string();
    return {};
  }
  const KVCacheSpec spec = (*runner)->config().kv_cache_spec(KvType::kF32);
  std::unique_ptr<Tier> home;
  if (has_home) {
    home = HostTier::create({.block_bytes = spec.slot_bytes(),
                             .capacity_bytes = std::int64_t{1} << 24,
                             .num_workers = 0})
               .value();
  }
  auto kv = KVCacheManager::create(spec, std::int64_t{1} << 24, std::move(home)).value();
  const KeyIndex index =
      std::move(KeyIndex::create(spec, KeyIndexKind::kR2, block_id_ranges(*kv), {},
                                 /*two_level_blocks=*/rank_ahead ? 0 : kTwoLevelBlocks)
                    .value());
  const SequenceId sequence = kv->open();
  std::vector<float> logits;
  for (int step = 0; step <= kSteps; ++step) {
    ForwardBatch batch;
    SequenceRows rows;
    rows.first_position = kv->num_tokens(sequence);
    rows.num_rows = step == 0 ? kPromptTokens : 2;
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
    batch.key_index = &index;
    recorder.begin_step(*kv, batch.sequences);
    const auto output = (*runner)->forward(batch, *kv);
    recorder.end_step();
    if (!output) {
      ADD_FAILURE() << output.error().to_string();
      return {};
    }
    logits.insert(logits.end(), output->begin(), output->end());
    if (has_home) {
      kv->write_home(sequence);
      kv->residency()->advance();
      kv->residency()->settle();
      kv->residency()->make_room(kv->stats().slots_total);
    }
  }
  return logits;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

struct Model {
  std::string name;
  RandomModelSpec spec;
  std::vector<int> selecting_layers;
};

void PrintTo(const Model& model, std::ostream* out) { *out << model.name; }

class RankAhead : public testing::TestWithParam<Model> {};

// All shapes of the projection: fused or not, with and without norms and biases.
INSTANTIATE_TEST_SUITE_P(
    All, RankAhead,
    testing::Values(
        Model{"llama", {.architecture = "llama", .num_layers = 3}, {0, 1, 2}},
        Model{"llama_quantised",
              {.architecture = "llama", .num_layers = 3, .weight_type = "q4_0"},
              {0, 1, 2}},
        Model{"llama_mixed_bias",
              {.architecture = "llama", .num_layers = 3, .weight_type = "q8_0", .qkv_bias = true},
              {0, 1, 2}},
        Model{"qwen2", {.architecture = "qwen2", .num_layers = 3}, {0, 1, 2}},
        Model{"qwen3", {.architecture = "qwen3", .num_layers = 3}, {0, 1, 2}},
        Model{"qwen3_bf16",
              {.architecture = "qwen3", .num_layers = 3, .weight_type = "bf16"},
              {0, 1, 2}},
        Model{"gemma3",
              {.architecture = "gemma3",
               .num_layers = 7,
               .sliding_window = 32,
               .sliding_window_period = 3},
              {2, 5}}),
    [](const testing::TestParamInfo<Model>& model) { return model.param.name; });

TEST_P(RankAhead, LogitsKeepTheirBitsAndEverySelectingLayerButTheFirstIsRankedOneEarly) {
  const Model& model = GetParam();
  const TemporaryFile file("rank_ahead.gguf");
  random_model(model.spec).write(file.path());
  Recorder without;
  const std::vector<float> expected = generate(file.path(), false, false, without);
  Recorder with;
  EXPECT_TRUE(same_bits(generate(file.path(), true, false, with), expected));
  EXPECT_EQ(with.num_lists, without.num_lists);
  EXPECT_GT(with.num_lists, 0U);
  std::vector<std::pair<std::string, int>> events;
  for (int step = 0; step <= kSteps; ++step) {
    for (int layer = 0; layer < model.spec.num_layers; ++layer) {
      events.emplace_back("selected", layer);
      if (step > 0 && std::ranges::count(model.selecting_layers, layer + 1) > 0) {
        events.emplace_back("ranked", layer + 1);
      }
    }
  }
  EXPECT_EQ(with.events, events);
  for (const auto& [key, blocks] : with.guessed) {
    EXPECT_TRUE(blocks.empty()) << "nothing is missing";
  }
}

// The image of a model whose layers add nothing to what they are given.
std::vector<std::byte> with_idle_layers(const RandomModelSpec& spec) {
  GgufImage image = random_model(spec).build();
  for (int layer = 0; layer < spec.num_layers; ++layer) {
    const std::string prefix = "blk." + std::to_string(layer) + ".";
    for (const char* name : {"attn_output.weight", "ffn_down.weight"}) {
      const GgufImage::TensorPlace& place = image.tensors.at(prefix + name);
      std::uint64_t offset = 0;
      std::memcpy(&offset, image.bytes.data() + place.offset, sizeof(offset));
      const int columns = std::string(name) == "ffn_down.weight" ? spec.intermediate_size
                                                                 : spec.num_heads * spec.head_dim;
      const std::size_t bytes = static_cast<std::size_t>(columns) *
                                static_cast<std::size_t>(spec.hidden_size) * sizeof(float);
      std::memset(image.bytes.data() + image.data + offset, 0, bytes);
    }
  }
  return image.bytes;
}

// The estimated query is then the true one. With one query head for each KV head, shares rank
// blocks as selection does.
TEST(RankAheadExact, WhereALayerAddsNothingTheGuessNamesWhatTheNextOneSelects) {
  for (const char* architecture : {"llama", "qwen2", "qwen3", "gemma3"}) {
    RandomModelSpec spec{.architecture = architecture, .num_layers = 3};
    spec.num_kv_heads = spec.num_heads;
    const TemporaryFile file("rank_ahead_exact.gguf");
    test::write_file(file.path(), with_idle_layers(spec));
    Recorder recorder;
    generate(file.path(), true, true, recorder);
    int num_compared = 0;
    for (const auto& [key, guess] : recorder.guessed) {
      ASSERT_TRUE(recorder.missing.contains(key)) << architecture;
      // Others of the same block and layer may have been loaded for the row before it.
      const auto& [layer, sequence, position, head] = key;
      if ((position - kPromptTokens) % 2 != 0) {
        continue;
      }
      std::vector<std::int32_t> selected;
      for (const std::int32_t entry : recorder.missing.at(key)) {
        const bool is_chosen = entry > 0 && entry < (position - 31) / kBlockSize;
        if (is_chosen) {  // neither the sink nor recent
          selected.push_back(entry);
        }
      }
      ASSERT_GE(guess.size(), selected.size()) << architecture;
      EXPECT_GT(guess.size(), 15U) << "all that is missing can be a candidate";
      std::vector<std::int32_t> first(guess.begin(),
                                      guess.begin() + static_cast<std::ptrdiff_t>(selected.size()));
      std::ranges::sort(first);
      EXPECT_EQ(first, selected) << architecture << " layer " << layer << " position " << position
                                 << " head " << head;
      num_compared += static_cast<int>(selected.size());
    }
    EXPECT_GT(num_compared, 60) << architecture;
  }
}

}  // namespace rank_ahead_test
}  // namespace karez
