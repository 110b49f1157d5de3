#include "engine/eval_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

namespace karez {
namespace eval_report_test {

using testing::HasSubstr;
using testing::Not;

RowComparison row_with(double reference_nll, double nll, bool reference_hits = true,
                       bool hits = true) {
  RowComparison row;
  row.reference_nll = reference_nll;
  row.nll = nll;
  row.kl = 0.25;
  row.agrees = true;
  row.reference_hits = reference_hits;
  row.hits = hits;
  return row;
}

EvalModeResult sparse_result(int budget, double loss, KeyIndexKind index = KeyIndexKind::kR2) {
  EvalModeResult result;
  result.mode = {
      .kv_type = KvType::kBf16, .is_sparse = true, .token_budget = budget, .block_index = index};
  result.index_share = 0.0703;
  result.documents.push_back({.name = "novel.txt",
                              .kind = DocumentKind::kText,
                              .length_tokens = 7904,
                              .rows = {row_with(2, 2 + loss), row_with(1, 1 + loss)},
                              .needles = {}});
  result.documents.push_back({.name = "needles",
                              .kind = DocumentKind::kNeedles,
                              .length_tokens = 7904,
                              .rows = {row_with(1, 1 + 3 * loss), row_with(1, 1)},
                              .needles = {{0.1, {row_with(1, 1 + 3 * loss)}},
                                          {0.95, {row_with(1, 1), row_with(1, 1, true, false)}}}});
  result.documents.push_back({.name = "pass key 7904 50 %",
                              .kind = DocumentKind::kPassKey,
                              .length_tokens = 7904,
                              .rows = {row_with(1, 9)},
                              .needles = {{0.5, {row_with(1, 9, true, false)}}}});
  return result;
}

EvalReport sample() {
  EvalReport report;
  report.model = "model.gguf";
  report.num_layers = 2;
  report.select_per = "KV head";
  report.recall_stride = 16;
  report.modes = {sparse_result(512, 0.04), sparse_result(1024, 0.01),
                  sparse_result(512, 0.4, KeyIndexKind::kMinMax)};
  report.modes[0].recall = {{.layer = 1, .sequence = 0, .position = 16, .head = 0, .mass = 0.75F},
                            {.layer = 1, .sequence = 0, .position = 16, .head = 1, .mass = 0.25F}};
  return report;
}

TEST(EvalReport, NeedlesAreFoundWhenAllTokensAre) {
  const NeedleFigures found =
      summarise_needles(sparse_result(512, 0.04).needles(DocumentKind::kNeedles));
  EXPECT_EQ(found.asked, 2);
  EXPECT_EQ(found.recalled, 1);
  EXPECT_EQ(found.reference_recalled, 2);
  EXPECT_EQ(found.answers.tokens, 3);
  EXPECT_NEAR(found.answers.loss, 0.04, 1e-12);
}

TEST(EvalReport, TheTotalIsOverTextsWithoutPassKeys) {
  const EvalFigures total = sparse_result(512, 0.04).total();
  EXPECT_EQ(total.tokens, 4);
  EXPECT_NEAR(total.loss, 0.05, 1e-12);
}

TEST(EvalReport, TheTableHasEveryPart) {
  const std::string table = to_table(sample());
  for (const char* part : {"sparse r2 512 bf16", "sparse minmax 512 bf16", "novel.txt", "all",
                           "+0.0500 +- ", "1 (2) / 2", "7.0 % of the KV bytes", "80-100 %",
                           "50 %: no (yes) +8.000", "0.5000 0.250 0.250"}) {
    EXPECT_THAT(table, HasSubstr(part));
  }
  EXPECT_EQ(to_table(EvalReport{}), "");
}

TEST(EvalReport, JsonHasTheFigures) {
  EvalReport report = sample();
  report.modes[1].documents[0].rows[0].kl = std::numeric_limits<double>::quiet_NaN();
  const nlohmann::json json = nlohmann::json::parse(to_json(report).dump());
  EXPECT_EQ(json["model"], "model.gguf");
  ASSERT_EQ(json["modes"].size(), 3U);
  const nlohmann::json& mode = json["modes"][0];
  EXPECT_EQ(mode["block_index"], "r2");
  EXPECT_EQ(mode["token_budget"], 512);
  EXPECT_NEAR(mode["total"]["loss"].get<double>(), 0.05, 1e-12);
  EXPECT_EQ(mode["documents"][0]["figures"]["tokens"], 2);
  EXPECT_EQ(mode["needles"]["recalled"], 1);
  EXPECT_EQ(mode["pass_keys"]["asked"], 1);
  EXPECT_EQ(mode["attention_mass_recalled"][0]["samples"], 0);
  EXPECT_NEAR(mode["attention_mass_recalled"][1]["mean"].get<double>(), 0.5, 1e-6);
  EXPECT_TRUE(json["modes"][1]["total"]["mean_kl"].is_null());
}

TEST(EvalReport, ThePlotHasALineForEachIndex) {
  const std::string svg = to_plot(sample());
  EXPECT_THAT(svg, HasSubstr(">r2, bf16<"));
  EXPECT_THAT(svg, HasSubstr(">minmax, bf16<"));
  EXPECT_THAT(svg, HasSubstr(">512<"));
  EXPECT_THAT(svg, HasSubstr("token budget"));
  EvalReport dense = sample();
  for (EvalModeResult& result : dense.modes) {
    result.mode.is_sparse = false;
  }
  EXPECT_THAT(to_plot(dense), Not(HasSubstr("<circle")));
}

EvalReport compressed_sample() {
  EvalReport report;
  report.model = "model.gguf";
  for (const CompressArchive archive : {CompressArchive::kOff, CompressArchive::kR4}) {
    for (const double keep : {0.5, 0.25}) {
      EvalModeResult result = sparse_result(0, (1 - keep) / 10);
      result.mode = {};
      result.mode.compression = CompressionOptions{.keep = keep,
                                                   .chunk = CompressChunk::kFixed,
                                                   .fixed_chunk_tokens = 4,
                                                   .archive = archive};
      for (EvalDocumentResult& document : result.documents) {
        document.prompt_tokens = 64;
        document.compressed = CompressedRun{.windows = 6,
                                            .kv_bytes = static_cast<std::int64_t>(1000 * keep),
                                            .dense_kv_bytes = 1000,
                                            .compress_seconds = 0.5,
                                            .seconds = 10};
      }
      report.modes.push_back(std::move(result));
    }
  }
  return report;
}

TEST(EvalReport, CompressionHasATableOfItsOwn) {
  const std::string table = to_table(compressed_sample());
  for (const char* part :
       {"windows of 512 generated tokens", "25 bidirectional fixed=4     r4 ", "25.0 %", "5.0 %",
        "+0.0750 +- ", "1 (2) / 2", "dense bf16 50 % bidirectional fixed=4 off", "80-100 %"}) {
    EXPECT_THAT(table, HasSubstr(part));
  }
  EXPECT_THAT(table, Not(HasSubstr("block index")));
}

TEST(EvalReport, JsonHasWhatWasCompressed) {
  const nlohmann::json json = to_json(compressed_sample());
  const nlohmann::json& mode = json["modes"][1];
  EXPECT_EQ(mode["compression"]["keep"], 0.25);
  EXPECT_EQ(mode["compression"]["chunk"], "fixed=4");
  EXPECT_EQ(mode["compression"]["archive"], "off");
  EXPECT_EQ(mode["compression"]["kept_tokens"], 128);
  EXPECT_EQ(mode["documents"][0]["prompt_tokens"], 64);
  EXPECT_EQ(mode["documents"][0]["compressed"]["kv_share"], 0.25);
  // Of the two documents that count.
  EXPECT_EQ(mode["compressed"]["windows"], 12);
  EXPECT_EQ(mode["compressed"]["kv_bytes"], 500);
  EXPECT_FALSE(to_json(sample())["modes"][0].contains("compression"));
}

TEST(EvalReport, PassKeysAloneHaveNoTotalAndAreCompressedAllTheSame) {
  EvalReport report = compressed_sample();
  for (EvalModeResult& result : report.modes) {
    result.documents.erase(result.documents.begin(), result.documents.begin() + 2);
  }
  const nlohmann::json json = to_json(report);
  EXPECT_FALSE(json["modes"][0].contains("total"));
  EXPECT_FALSE(json["modes"][0].contains("compressed"));
  EXPECT_EQ(json["modes"][0]["documents"][0]["compressed"]["windows"], 6);
  EXPECT_THAT(to_table(report), Not(HasSubstr("No window was compressed")));
  for (EvalModeResult& result : report.modes) {
    result.documents.front().compressed->windows = 0;
  }
  EXPECT_THAT(to_table(report), HasSubstr("No window was compressed"));
}

TEST(EvalReport, ThePlotOfCompressionIsOverBytesAndHasALineForEachWay) {
  const std::string svg = to_plot(compressed_sample());
  for (const char* part :
       {">bidirectional fixed=4 off<", ">bidirectional fixed=4 r4<", ">25<", ">50<", "KV bytes"}) {
    EXPECT_THAT(svg, HasSubstr(part));
  }
}

}  // namespace eval_report_test
}  // namespace karez
