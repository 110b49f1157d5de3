// The promise of the cap: a process holds the weights once, the cap, and little else.
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <fstream>
#include <iostream>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "engine/engine.h"
#include "engine/home_tier.h"
#include "kv/kv_cache_manager.h"
#include "model/ggml_model_runner.h"
#include "model/tokenizer.h"
#include "support/model_files.h"

namespace karez::test {
namespace {

std::int64_t status_bytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string name; status >> name;) {
    std::int64_t kib = 0;
    if (name == field && status >> kib) {
      return kib * kKiB;
    }
  }
  return -1;
}

// Code, graphs, compute buffers, tables.
constexpr std::int64_t kAllowedExtraBytes = 150 * kMiB;
constexpr std::int64_t kCapBytes = 96 * kMiB;
constexpr int kStepTokens = 512;

class MemoryBound : public testing::TestWithParam<const char*> {};

TEST_P(MemoryBound, HoldsWeightsOnceTheCapAndAtMost150MiB) {
  const std::int64_t before = status_bytes("VmRSS:");
  ASSERT_GT(before, 0);
  const auto runner = load_model(model_path(GetParam()), {.num_threads = 2});
  ASSERT_TRUE(runner.has_value()) << runner.error().to_string();
  const auto kv =
      KVCacheManager::create((*runner)->config().kv_cache_spec(KvType::kBf16), kCapBytes);
  ASSERT_TRUE(kv.has_value());

  // Sequences are read until no room is left, so that every page of the cap is touched.
  int tokens_read = 0;
  bool full = false;
  while (!full) {
    const SequenceId sequence = (*kv)->open();
    for (int position = 0; position < 2 * kStepTokens; position += kStepTokens) {
      full = !(*kv)->extend(sequence, kStepTokens);
      if (full) {
        break;
      }
      ForwardBatch batch;
      // All over the vocabulary, so that all of the embedding is looked at.
      for (int i = 0; i < kStepTokens; ++i) {
        batch.tokens.push_back((tokens_read + i) * 7919 % (*runner)->config().vocab_size);
      }
      SequenceRows rows;
      rows.first_position = position;
      rows.num_rows = kStepTokens;
      for (std::size_t group = 0; group < (*kv)->layer_groups().size(); ++group) {
        rows.tables.push_back((*kv)->table(sequence, static_cast<int>(group)));
      }
      batch.sequences.push_back(rows);
      batch.output_rows = {kStepTokens - 1};
      ASSERT_TRUE((*runner)->forward(batch, **kv).has_value());
      tokens_read += kStepTokens;
    }
  }

  const std::int64_t grown = status_bytes("VmRSS:") - before;
  const std::int64_t weights = (*runner)->config().weight_bytes;
  std::cout << "  " << tokens_read << " tokens; grown by " << format_bytes(grown) << ": weights "
            << format_bytes(weights) << ", cap " << format_bytes(kCapBytes) << ", else "
            << format_bytes(std::max<std::int64_t>(0, grown - weights - kCapBytes)) << std::endl;
  EXPECT_GT(tokens_read, kStepTokens);
  EXPECT_LE(grown, weights + kCapBytes + kAllowedExtraBytes);
}

// With home on disk the full KV is nowhere in memory: the process holds the cap and little else,
// sampled at every step of more requests than the cap has room for.
TEST(MemoryBoundWithHome, TheFullKvIsNotInMemory) {
  constexpr std::int64_t kFastBytes = 24 * kMiB;
  constexpr std::int64_t kTables = 40 * kMiB;  // of the store and the tier, logits, stacks
  constexpr int kRequests = 7;
  constexpr int kPromptTokens = 1000;
  const std::string path = model_path(kSmolLm2);
  auto loader = std::make_unique<BlockLoader>();
  auto runner = load_model(path, {.num_threads = 2, .selection_listener = loader.get()});
  ASSERT_TRUE(runner.has_value()) << runner.error().to_string();
  const KVCacheSpec spec = (*runner)->config().kv_cache_spec(KvType::kBf16);
  const int vocab_size = (*runner)->config().vocab_size;
  const auto tokenizer = Tokenizer::load(path);
  ASSERT_TRUE(tokenizer.has_value());
  const auto vocabulary = model_vocabulary(**tokenizer, kPromptTokens + 64);

  const auto make_request = [&](int index) {
    Request request;
    for (int i = 0; i < kPromptTokens; ++i) {
      request.prompt.push_back((i * 7919 + index * 31) % vocab_size);
    }
    request.max_tokens = 8;
    request.ignore_eos = true;
    return request;
  };
  auto home = make_home_tier(
      spec, {.disk_bytes = std::int64_t{1} << 30, .disk_directory = testing::TempDir()});
  ASSERT_TRUE(home.has_value()) << home.error().to_string();
  auto kv = KVCacheManager::create(spec, kFastBytes, std::move(*home));
  ASSERT_TRUE(kv.has_value());
  EngineOptions options;
  options.context_tokens = kPromptTokens + 64;
  options.scheduler.max_num_batched_tokens = 128;
  auto engine = Engine::create(options, std::move(*runner), std::move(*kv), *vocabulary, nullptr,
                               std::move(loader));
  ASSERT_TRUE(engine.has_value());

  std::mutex mutex;
  std::condition_variable changed;
  int num_open = 0;
  std::int64_t most = 0;
  std::int64_t before = 0;
  const auto run = [&](int first, int count) {
    num_open = count;
    for (int i = first; i < first + count; ++i) {
      const auto id = (*engine)->submit(make_request(i), [&](const GenerationEvent& event) {
        const std::lock_guard lock(mutex);
        most = std::max(most, status_bytes("VmRSS:"));
        num_open -= event.finished ? 1 : 0;
        changed.notify_all();
      });
      ASSERT_TRUE(id.has_value()) << id.error().to_string();
    }
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return num_open == 0; });
  };
  run(0, 1);  // buffers of the graphs, pages of the embedding and of the cap
  before = status_bytes("VmRSS:") - kFastBytes;
  run(1, kRequests - 1);
  const std::int64_t dense = spec.slots_for_sequence(kPromptTokens, 128) * (kRequests - 1) *
                             static_cast<std::int64_t>(spec.slot_bytes());
  const EngineStats stats = (*engine)->stats();
  std::cout << "  KV of " << format_bytes(dense) << " under a cap of " << format_bytes(kFastBytes)
            << "; the process grew to " << format_bytes(most - before) << " over its buffers; "
            << format_bytes(stats.tiers.bytes_written) << " went to disk" << std::endl;
  EXPECT_LE(most - before, kFastBytes + kTables);
  EXPECT_GT(dense, kFastBytes + kTables);
  EXPECT_GT(stats.tiers.bytes_written, dense / 2);
}

INSTANTIATE_TEST_SUITE_P(Models, MemoryBound, testing::Values(kSmolLm2, kGemma3),
                         [](const auto& test) {
                           return test.param == kSmolLm2 ? "SmolLM2" : "Gemma3";
                         });

}  // namespace
}  // namespace karez::test
