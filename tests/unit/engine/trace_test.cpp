// The trace of a real model's steps over a slow home tier.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/attached_key_index.h"
#include "engine/block_loader.h"
#include "kv/kv_cache_manager.h"
#include "kv/residency.h"
#include "kv/tier/host_tier.h"
#include "kv/tier/throttled_tier.h"
#include "model/ggml_model_runner.h"
#include "support/random_model.h"
#include "support/temporary_file.h"
#include "support/trace_spans.h"

namespace karez::test {
namespace trace_test {

constexpr int kStepTokens = 48;
constexpr int kPromptSteps = 5;
constexpr int kDecodeSteps = 6;
constexpr int kNumLayers = 3;

// Loads what a layer needs, then guesses some blocks of the next layer, others in each step.
struct GuessingLoader final : SelectionListener {
  void on_selected(int layer, std::span<SelectedBlocks> selected) override {
    loader.on_selected(layer, selected);
    const BlockTableView table = kv->table(sequence, 0);
    for (std::size_t i = step % 4; i < table.size(); i += 4) {
      for (int head = 0; head < kv->spec().num_kv_heads; ++head) {
        kv->residency()->hint((layer + 1) % kNumLayers, head, table[i], LookaheadSource::kLayer);
      }
    }
    kv->residency()->prefetch();
  }
  BlockLoader loader;
  KVCacheManager* kv = nullptr;
  SequenceId sequence;
  std::size_t step = 0;
};

struct TracedRun {
  std::string trace;
  ResidencyStats stats;
  std::int64_t nanoseconds = 0;
};

void run_model(TracedRun& run) {
  const TemporaryFile file("trace.gguf");
  random_model({.num_layers = kNumLayers}).write(file.path());
  TraceWriter trace;
  GuessingLoader listener;
  SparseOptions sparse;
  sparse.token_budget = 64;
  sparse.recent_window = 16;
  auto runner = load_model(
      file.path(),
      {.num_threads = 1, .sparse = sparse, .selection_listener = &listener, .trace = &trace});
  ASSERT_TRUE(runner) << runner.error().to_string();
  const KVCacheSpec spec = (*runner)->config().kv_cache_spec(KvType::kBf16);
  const auto slot_bytes = static_cast<std::int64_t>(spec.slot_bytes());
  auto host =
      HostTier::create(
          {.block_bytes = spec.slot_bytes(), .capacity_bytes = 1000 * slot_bytes, .num_workers = 1})
          .value();
  // The sequence has 96 blocks of a layer and head in the end.
  auto kv = KVCacheManager::create(
                spec, 70 * slot_bytes,
                std::make_unique<ThrottledTier>(std::move(host),
                                                Throttle{.latency = std::chrono::microseconds(50)}))
                .value();
  kv->residency()->set_trace(&trace);
  auto index = KeyIndex::create(spec, sparse.block_index, block_id_ranges(*kv)).value();
  listener.kv = kv.get();
  listener.sequence = kv->open();
  const auto start = std::chrono::steady_clock::now();
  for (int step = 0; step < kPromptSteps + kDecodeSteps; ++step) {
    ForwardBatch batch;
    SequenceRows rows;
    rows.first_position = kv->num_tokens(listener.sequence);
    rows.num_rows = step < kPromptSteps ? kStepTokens : 1;
    rows.first_sparse_position = kPromptSteps * kStepTokens;
    ASSERT_TRUE(kv->extend(listener.sequence, rows.num_rows));
    rows.tables = {kv->table(listener.sequence, 0)};
    for (int i = 0; i < rows.num_rows; ++i) {
      batch.tokens.push_back(3 + (rows.first_position + i) * 7 % 250);
    }
    batch.output_rows = {rows.num_rows - 1};
    batch.sequences = {rows};
    batch.key_index = &index;
    listener.loader.begin_step(*kv, batch.sequences);
    ASSERT_TRUE((*runner)->forward(batch, *kv));
    ASSERT_FALSE(listener.loader.end_step().front().is_lost);
    ++listener.step;
    kv->write_home(listener.sequence);
    kv->residency()->advance();
  }
  kv->residency()->settle();
  run.nanoseconds = std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count();
  run.stats = kv->residency()->stats();
  run.trace = trace.to_json();
  EXPECT_EQ(trace.num_dropped(), 0);
}

TEST(Trace, ShowsWhatWasComputedAndWhatMovedSideBySide) {
  TracedRun run;
  run_model(run);
  ASSERT_FALSE(HasFatalFailure());
  std::vector<TracedSpan> spans = read_trace(run.trace);
  ASSERT_EQ(check_nesting(spans), "");
  std::map<std::string, int> counts;
  std::map<std::string, std::int64_t> bytes;  // by row
  for (const TracedSpan& span : spans) {
    EXPECT_GE(span.begin_ns, 0);
    EXPECT_LE(span.end_ns, run.nanoseconds) << span.name;
    if (span.row != "compute") {
      bytes[span.row] += span.args.at("bytes").get<std::int64_t>();
      continue;
    }
    ++counts[span.name];
    const std::vector<std::string> in_step = {"step"};
    const std::vector<std::string> in_attention = {"step", "attention"};
    const std::vector<std::string> in_select = {"step", "attention", "select"};
    if (span.name == "attention" || span.name == "dense") {
      EXPECT_EQ(span.within, in_step);
    } else if (span.name == "store" || span.name == "select" || span.name == "attend") {
      EXPECT_EQ(span.within, in_attention);
    } else if (span.name == "wait") {
      EXPECT_EQ(span.within, in_select);
    }
  }
  constexpr int kSteps = kPromptSteps + kDecodeSteps;
  EXPECT_EQ(counts["step"], kSteps);
  EXPECT_EQ(counts["attention"], kSteps * kNumLayers);
  EXPECT_EQ(counts["dense"], kSteps * (kNumLayers + 1));
  for (const char* name : {"store", "select", "attend"}) {
    EXPECT_EQ(counts[name], kSteps * kNumLayers) << name;
  }
  EXPECT_GT(counts["wait"], 0);
  EXPECT_GT(run.stats.prefetch.total().fetched, 0);
  EXPECT_GT(bytes["prefetch"], 0);
  EXPECT_EQ(bytes["demand reads"] + bytes["prefetch"], run.stats.bytes_read);
  EXPECT_EQ(bytes["write-back"], run.stats.bytes_written);
}

}  // namespace trace_test
}  // namespace karez::test
