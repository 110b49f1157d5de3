#include "engine/bench_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>

namespace karez {
namespace {

BenchReport two_runs() {
  BenchRun ours;
  ours.engine = "karez";
  ours.model = "tiny.gguf";
  ours.kv_type = "bf16";
  ours.depth = 4096;
  ours.concurrency = 8;
  ours.threads = 2;
  ours.kv_fast_bytes = 1 << 20;
  ours.prefill_tokens_per_second = 1000;
  ours.decode_tokens_per_second = 321.5;
  ours.decode_repetitions = {300, 321.5, 330};
  ours.step_ms = {.total = 24.88, .dense = 10, .attention = 14, .other = 0.88};
  ours.kv_read_bytes = 1000;
  ours.decode_ratio = 2.5;
  ours.prefill_ratio = 1.5;
  BenchRun theirs = ours;
  theirs.engine = "llama.cpp";
  theirs.kv_type = "q8_0/f16";
  theirs.kv_read_bytes = 0;
  theirs.decode_ratio.reset();
  theirs.step_ms = {};
  theirs.step_ms.total = 60;
  BenchReport report;
  report.cpu_name = "Some processor";
  report.runs = {ours, theirs};
  report.peer_settings = "fa=off,k=q8_0,v=f16,ub=512";
  report.peer_candidates = {{"fa=off,k=f16,v=f16,ub=512", 900, 100, false},
                            {"fa=off,k=q8_0,v=f16,ub=512", 900, 130, true}};
  return report;
}

TEST(BenchReport, MedianIsTheMiddleValueOrTheLowerOfTwo) {
  EXPECT_EQ(median({}), 0);
  EXPECT_EQ(median({7}), 7);
  EXPECT_EQ(median({9, 1, 5}), 5);
  EXPECT_EQ(median({4, 1, 3, 2}), 2);
}

TEST(BenchReport, ACrossoverIsWhereSparsePaysFromThereOn) {
  const auto run = [](int depth, int concurrency, double ratio) {
    BenchRun sparse;
    sparse.kv_type = "bf16";
    sparse.depth = depth;
    sparse.token_budget = 1024;
    sparse.concurrency = concurrency;
    sparse.decode_over_dense = ratio;
    return sparse;
  };
  const auto found =
      find_crossovers({run(512, 8, 0.9), run(512, 1, 1.2), run(4096, 1, 0.8), run(4096, 4, 1.0),
                       run(4096, 2, 1.1), run(4096, 8, 1.9), run(7900, 1, 1.4)});
  ASSERT_EQ(found.size(), 2U);  // one number of sequences is no sweep
  EXPECT_EQ(found[0].depth, 512);
  EXPECT_EQ(found[0].concurrency, std::nullopt);
  EXPECT_EQ(found[1].depth, 4096);
  EXPECT_EQ(found[1].concurrency, 2);
}

TEST(BenchReport, EachVariantHasACrossoverOfItsOwn) {
  BenchReport report;
  for (const auto& [variant, concurrency, ratio] :
       {std::tuple("draft:25%", 1, 0.5), std::tuple("off:25%", 1, 0.5),
        std::tuple("draft:25%", 4, 1.5), std::tuple("off:25%", 4, 0.9)}) {
    BenchRun run;
    run.kv_type = "bf16";
    run.depth = 512;
    run.token_budget = 1024;
    run.concurrency = concurrency;
    run.variant = variant;
    run.decode_over_dense = ratio;
    report.runs.push_back(run);
  }
  const auto found = find_crossovers(report.runs);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].variant, "draft:25%");
  EXPECT_EQ(found[0].concurrency, 4);
  EXPECT_EQ(found[1].variant, "off:25%");
  EXPECT_EQ(found[1].concurrency, std::nullopt);
  EXPECT_THAT(to_table(report), testing::HasSubstr("budget 1024 at depth 512 (bf16, draft:25%): "
                                                   "sparse is at least as fast as dense from 4"));
  const nlohmann::json crossovers = to_json(report).at("crossovers");
  EXPECT_EQ(crossovers.at(0).at("variant"), "draft:25%");
  EXPECT_EQ(crossovers.at(1).at("variant"), "off:25%");
  report.runs.resize(1);
  report.runs.front().variant.clear();
  report.runs.push_back(report.runs.front());
  report.runs.back().concurrency = 2;
  EXPECT_FALSE(to_json(report).at("crossovers").at(0).contains("variant"));
  EXPECT_THAT(to_table(report), testing::HasSubstr("at depth 512 (bf16): sparse is slower"));
}

// Other programs read these names.
TEST(BenchReport, JsonRunsHaveTheDocumentedKeys) {
  const nlohmann::json json = to_json(two_runs());
  ASSERT_EQ(json.at("runs").size(), 2U);
  for (const nlohmann::json& run : json.at("runs")) {
    for (const char* key :
         {"engine", "model", "kv_mode", "kv_type", "depth", "concurrency", "threads",
          "prefill_tokens_per_second", "decode_tokens_per_second", "step_ms", "kv_fast_bytes"}) {
      EXPECT_TRUE(run.contains(key)) << key;
    }
    for (const char* key : {"total", "dense", "attention", "other"}) {
      EXPECT_TRUE(run.at("step_ms").contains(key)) << key;
    }
  }
  const nlohmann::json& ours = json.at("runs").at(0);
  EXPECT_EQ(ours.at("engine"), "karez");
  EXPECT_EQ(ours.at("kv_mode"), "dense");
  EXPECT_EQ(ours.at("depth"), 4096);
  EXPECT_EQ(ours.at("decode_tokens_per_second"), 321.5);
  EXPECT_EQ(ours.at("step_ms").at("attention"), 14);
  EXPECT_EQ(ours.at("decode_repetitions").size(), 3U);
  EXPECT_EQ(ours.at("decode_ratio"), 2.5);
}

TEST(BenchReport, JsonSaysNullForWhatAnEngineDoesNotTell) {
  const nlohmann::json json = to_json(two_runs());
  const nlohmann::json& theirs = json.at("runs").at(1);
  EXPECT_EQ(theirs.at("step_ms").at("total"), 60);
  EXPECT_TRUE(theirs.at("step_ms").at("dense").is_null());
  EXPECT_FALSE(theirs.contains("kv_read_bytes_per_step"));
}

BenchReport with_lookahead() {
  BenchReport report = two_runs();
  BenchRun& ours = report.runs[0];
  ours.home = "some tier";
  ours.layers_ready_share = 0.75;
  BenchLookahead lookahead;
  lookahead.steps = 10;
  lookahead.counts.of(LookaheadSource::kDraft) = {
      .predicted = 900, .fetched = 100, .useful = 60, .late = 10, .wasted = 20};
  lookahead.counts.of(LookaheadSource::kLayer) = {.predicted = 100, .fetched = 100, .useful = 100};
  lookahead.counts.bytes_fetched = 2000;
  lookahead.counts.bytes_wasted = 200;
  lookahead.counts.dropped = 50;
  ours.lookahead = lookahead;
  return report;
}

TEST(BenchReport, JsonTellsWhatBecameOfGuessesByTheirSource) {
  const nlohmann::json json = to_json(with_lookahead());
  EXPECT_FALSE(json.at("runs").at(1).contains("lookahead"));
  EXPECT_EQ(json.at("runs").at(0).at("layers_ready_share"), 0.75);
  const nlohmann::json& lookahead = json.at("runs").at(0).at("lookahead");
  EXPECT_EQ(lookahead.at("predicted"), 100) << "a step";
  EXPECT_EQ(lookahead.at("fetched"), 20);
  EXPECT_EQ(lookahead.at("fetched_bytes"), 200);
  EXPECT_EQ(lookahead.at("wasted_share"), 0.1);
  EXPECT_EQ(lookahead.at("sources").size(), 2U);
  EXPECT_EQ(lookahead.at("sources").at("draft").at("late"), 1);
  EXPECT_EQ(lookahead.at("sources").at("layer").at("useful"), 10);
}

TEST(BenchReport, TableTellsWhatBecameOfGuesses) {
  const std::string table = to_table(with_lookahead());
  EXPECT_THAT(table, testing::HasSubstr("75.0 % of its layers are ready"));
  EXPECT_THAT(table, testing::HasSubstr("lookahead draft    predicts 90 blocks a step, fetches "
                                        "10.0: 60 % useful, 10 % late, 20 % wasted"));
  EXPECT_THAT(table, testing::HasSubstr("lookahead all      predicts 100 blocks a step"));
  EXPECT_THAT(table, testing::HasSubstr("of the bytes fetched 10 % are wasted; a step drops 5"));
  EXPECT_THAT(to_table(two_runs()), testing::Not(testing::HasSubstr("lookahead")));
}

TEST(BenchReport, TableShowsARowForEachRunAndTheSettingsUsed) {
  const std::string table = to_table(two_runs());
  EXPECT_THAT(table, testing::HasSubstr("321.5"));
  EXPECT_THAT(table, testing::HasSubstr("2.50x"));
  EXPECT_THAT(table, testing::HasSubstr("llama.cpp runs with fa=off,k=q8_0,v=f16,ub=512"));
  EXPECT_THAT(table, testing::ContainsRegex("k=q8_0,v=f16,ub=512 .*<- used"));
  std::set<std::size_t> bar_positions;
  int rows = 0;
  for (std::size_t begin = 0; begin < table.size();) {
    const std::size_t end = table.find('\n', begin);
    const std::string line = table.substr(begin, end - begin);
    if (line.find('|') != std::string::npos) {
      bar_positions.insert(line.find('|'));
      ++rows;
    }
    begin = end + 1;
  }
  EXPECT_EQ(rows, 3);
  EXPECT_EQ(bar_positions.size(), 1U) << "columns stand below each other";
}

TEST(BenchReport, ADepthBeyondTheModelsContextIsSaid) {
  BenchReport report = two_runs();
  EXPECT_THAT(to_table(report), testing::Not(testing::HasSubstr("was trained for")));
  EXPECT_FALSE(to_json(report).contains("exceeded_context_tokens"));
  report.exceeded_context_tokens = 8192;
  EXPECT_THAT(to_table(report), testing::HasSubstr("was trained for 8192 tokens"));
  EXPECT_EQ(to_json(report)["exceeded_context_tokens"], 8192);
}

TEST(BenchReport, ABoundsSkippedBlocksAreToldWhereThereAreSome) {
  BenchReport report = two_runs();
  report.runs[0].home = "a tier";
  report.runs[0].on_miss = "bounded=2";
  EXPECT_EQ(to_table(report).find("skips"), std::string::npos);
  report.runs[0].blocks_skipped = 12;
  report.runs[0].missed_mass_mean = 0.005;
  report.runs[0].missed_mass_worst = 0.25;
  const nlohmann::json run = to_json(report)["runs"][0];
  EXPECT_EQ(run["on_miss"], "bounded=2");
  EXPECT_EQ(run["blocks_skipped_per_step"], 12);
  EXPECT_EQ(run["missed_mass_mean"], 0.005);
  EXPECT_EQ(run["missed_mass_worst"], 0.25);
  EXPECT_THAT(to_table(report),
              testing::HasSubstr("bounded=2: skips 12 blocks with 0.50 % of the attention, 25.00 % "
                                 "where most"));
}

}  // namespace
}  // namespace karez
