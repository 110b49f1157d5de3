// The promise of the cap: a process holds the weights once, the cap, and little else.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "kv/kv_cache_manager.h"
#include "model/ggml_model_runner.h"
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

INSTANTIATE_TEST_SUITE_P(Models, MemoryBound, testing::Values(kSmolLm2, kGemma3),
                         [](const auto& test) {
                           return test.param == kSmolLm2 ? "SmolLM2" : "Gemma3";
                         });

}  // namespace
}  // namespace karez::test
