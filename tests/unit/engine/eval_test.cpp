// Whole evaluations of a small random model, whose tokens are bytes.
#include "engine/eval.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "support/random_model.h"
#include "support/temporary_file.h"

namespace karez {
namespace eval_test {

using testing::HasSubstr;

constexpr int kLength = 700;
constexpr int kDecoded = 40;

struct Eval : testing::Test {
  Eval() : file("eval.gguf") {
    test::RandomModelSpec spec;
    spec.context_length = 1024;
    spec.seed = 5;
    test::random_model(spec).write(file.path());
    options.model_path = file.path();
    for (int i = 0; i < 60; ++i) {
      text += "Line " + std::to_string(i * i * 7919 % 1000) + " of a text.\n";
    }
    options.texts = {{"a.txt", text}};
    options.lengths = {kLength};
    options.decode_tokens = kDecoded;
    options.sparse.recent_window = 32;
    options.num_threads = 2;
    options.step_tokens = 96;
  }

  EvalReport run(std::vector<EvalMode> modes) {
    options.modes = std::move(modes);
    auto report = run_eval(options, {});
    EXPECT_TRUE(report) << report.error().to_string();
    return report ? std::move(*report) : EvalReport();
  }

  static EvalMode sparse(int budget, KeyIndexKind index = KeyIndexKind::kR2,
                         KvType type = KvType::kF32) {
    return {.kv_type = type, .is_sparse = true, .token_budget = budget, .block_index = index};
  }

  test::TemporaryFile file;
  std::string text;
  EvalOptions options;
};

void expect_nothing_lost(const EvalModeResult& result) {
  ASSERT_FALSE(result.documents.empty());
  for (const EvalDocumentResult& document : result.documents) {
    ASSERT_EQ(document.rows.size(), static_cast<std::size_t>(kDecoded));
    for (const RowComparison& row : document.rows) {
      EXPECT_EQ(row.loss(), 0) << to_string(result.mode);
      EXPECT_EQ(row.kl, 0) << to_string(result.mode);
      EXPECT_TRUE(row.agrees);
    }
  }
}

TEST_F(Eval, DenseAgainstDenseLosesExactlyNothing) {
  const EvalReport report =
      run({{.kv_type = KvType::kF32}, {.kv_type = KvType::kBf16}, {.kv_type = KvType::kQ8_0}});
  ASSERT_EQ(report.modes.size(), 3U);
  for (const EvalModeResult& result : report.modes) {
    expect_nothing_lost(result);
    EXPECT_GT(result.total().nll, 1);  // a random model knows nothing
    EXPECT_TRUE(std::isfinite(result.total().nll));
  }
}

TEST_F(Eval, ABudgetOfTheWholeContextLosesExactlyNothing) {
  std::vector<EvalMode> modes;
  for (const KeyIndexKind index :
       {KeyIndexKind::kR2, KeyIndexKind::kR3, KeyIndexKind::kMinMax, KeyIndexKind::kMean}) {
    modes.push_back(sparse(kLength, index));
    modes.push_back(sparse(1 << 20, index, KvType::kBf16));
  }
  for (const EvalModeResult& result : run(modes).modes) {
    expect_nothing_lost(result);
  }
}

TEST_F(Eval, DenseLayersLoseExactlyNothing) {
  options.sparse.dense_layers = 2;
  expect_nothing_lost(run({sparse(64)}).modes[0]);
}

TEST_F(Eval, ASmallBudgetCostsMoreThanALargeOne) {
  options.sparse.recall_stride = 1;
  const EvalReport report = run({sparse(64), sparse(640)});
  const EvalFigures small = report.modes[0].total();
  const EvalFigures large = report.modes[1].total();
  EXPECT_GT(large.mean_kl, 0);
  EXPECT_GT(small.mean_kl, 2 * large.mean_kl);
  EXPECT_EQ(small.reference_nll, large.reference_nll);
  // Every row, both layers, four heads.
  EXPECT_EQ(report.modes[0].recall.size(), std::size_t{kDecoded} * 2 * 4);
  const auto mean = [](const EvalModeResult& result) {
    double sum = 0;
    for (const RecallSample& sample : result.recall) {
      sum += static_cast<double>(sample.mass) / static_cast<double>(result.recall.size());
    }
    return sum;
  };
  EXPECT_GT(mean(report.modes[1]), 0.9);
  EXPECT_LT(mean(report.modes[0]), mean(report.modes[1]));
}

TEST_F(Eval, TheKeyCentreReachesTheIndexThatHasOne) {
  const std::vector<EvalMode> modes = {sparse(96), sparse(96, KeyIndexKind::kMinMax)};
  const EvalReport without = run(modes);
  options.key_centre = {"b.txt", text};
  const EvalReport with = run(modes);
  EXPECT_EQ(with.key_centre, "b.txt");
  EXPECT_NE(with.modes[0].total().nll, without.modes[0].total().nll);
  EXPECT_EQ(with.modes[1].total().nll, without.modes[1].total().nll);
}

TEST_F(Eval, ANarrowKvTypeCostsALittle) {
  options.reference_type = KvType::kF32;
  const EvalFigures figures = run({{.kv_type = KvType::kQ8_0}}).modes[0].total();
  EXPECT_NE(figures.loss, 0);
  EXPECT_LT(std::abs(figures.loss), 0.01);
  EXPECT_GT(figures.mean_kl, 0);
  EXPECT_LT(figures.mean_kl, 0.001);
}

TEST_F(Eval, APromptThatCameInFourBitsIsHeldAgainstOneThatDidNot) {
  const std::vector<EvalMode> modes = {{.kv_type = KvType::kBf16},
                                       sparse(1 << 20, KeyIndexKind::kR2, KvType::kBf16)};
  const EvalFigures exact = run(modes).modes[0].total();
  options.prompt_kv = KvWireType::kR4;
  const EvalReport report = run(modes);
  const EvalFigures dense = report.modes[0].total();
  EXPECT_EQ(dense.reference_nll, exact.reference_nll);
  EXPECT_NE(dense.loss, 0);
  EXPECT_GT(dense.mean_kl, 0);
  EXPECT_LT(dense.mean_kl, 0.05);
  EXPECT_EQ(report.modes[1].total().nll, dense.nll) << "a budget of everything";
}

TEST_F(Eval, StepsAndCompanyDoNotMatter) {
  const EvalReport alone = run({sparse(128, KeyIndexKind::kMinMax)});
  options.texts.push_back({"b.txt", text.substr(20)});
  options.num_threads = 1;
  const EvalReport more = run({sparse(64), sparse(128, KeyIndexKind::kMinMax)});
  ASSERT_EQ(more.modes[1].documents.size(), 2U);
  const auto& first = alone.modes[0].documents[0].rows;
  const auto& second = more.modes[1].documents[0].rows;
  ASSERT_EQ(first.size(), second.size());
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(first[i].nll, second[i].nll);
  }
}

TEST_F(Eval, HiddenNumbersAreAskedForAtEachLength) {
  options.lengths = {500, kLength};
  options.num_needles = 3;
  options.pass_key = true;
  options.filler = {"a.txt", text};
  const EvalReport report = run({sparse(128)});
  const EvalModeResult& result = report.modes[0];
  EXPECT_EQ(result.documents.size(), 2U * (1 + 1 + 5));
  EXPECT_EQ(result.needles(DocumentKind::kNeedles).size(), 6U);
  EXPECT_EQ(result.needles(DocumentKind::kPassKey).size(), 10U);
  for (const EvalDocumentResult& document : result.documents) {
    for (const NeedleResult& needle : document.needles) {
      EXPECT_EQ(needle.tokens.size(), 5U);  // bytes
    }
  }
}

TEST_F(Eval, ProgressGoesUpToTheEnd) {
  std::vector<double> seen;
  options.reference_type = KvType::kF32;
  options.modes = {sparse(64), {.kv_type = KvType::kBf16}};
  ASSERT_TRUE(run_eval(options, [&](std::string_view, double done) { seen.push_back(done); }));
  ASSERT_FALSE(seen.empty());
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_GT(seen.front(), 0);
  EXPECT_NEAR(seen.back(), 1, 0.02);
}

TEST_F(Eval, BadInputIsNamedWithItsFigures) {
  options.modes = {sparse(64)};
  options.lengths = {2000};
  auto report = run_eval(options, {});
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(report.error().message(), HasSubstr("--length is 2000"));
  EXPECT_THAT(report.error().message(), HasSubstr("1024"));

  options.lengths = {kDecoded};
  report = run_eval(options, {});
  ASSERT_FALSE(report);
  EXPECT_THAT(report.error().message(), HasSubstr("42 at least"));

  options.lengths = {kLength};
  options.texts = {{"short.txt", "Too short."}};
  report = run_eval(options, {});
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(report.error().message(), HasSubstr("short.txt has 1"));
  EXPECT_THAT(report.error().message(), HasSubstr("700 are needed"));

  options.texts = {{"broken.txt", "\xff"}};
  report = run_eval(options, {});
  ASSERT_FALSE(report);
  EXPECT_THAT(report.error().message(), HasSubstr("broken.txt"));
}

}  // namespace eval_test
}  // namespace karez
