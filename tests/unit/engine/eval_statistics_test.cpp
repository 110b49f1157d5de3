#include "engine/eval_statistics.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

namespace karez {
namespace eval_statistics_test {

std::vector<float> logits_of(const std::vector<double>& probabilities, double shift = 0) {
  std::vector<float> logits;
  for (const double p : probabilities) {
    logits.push_back(static_cast<float>(std::log(p) + shift));
  }
  return logits;
}

RowComparison row_with(double reference_nll, double nll, double kl = 0, bool agrees = true) {
  RowComparison row;
  row.reference_nll = reference_nll;
  row.nll = nll;
  row.kl = kl;
  row.agrees = agrees;
  return row;
}

TEST(EvalStatistics, EqualLogitsHaveNoLossAndNoDivergence) {
  const std::vector<float> logits = {0.5F, -3.0F, 7.25F, 1e-3F, 90.0F};
  const RowComparison row = compare_row(logits, logits, 1);
  EXPECT_EQ(row.loss(), 0);
  EXPECT_EQ(row.kl, 0);
  EXPECT_TRUE(row.agrees);
}

TEST(EvalStatistics, FiguresOfKnownDistributions) {
  // Logits may be shifted by any constant.
  const RowComparison row =
      compare_row(logits_of({0.5, 0.25, 0.25}), logits_of({0.25, 0.5, 0.25}, 11), 0);
  EXPECT_NEAR(row.reference_nll, std::log(2), 1e-6);
  EXPECT_NEAR(row.nll, std::log(4), 1e-6);
  EXPECT_NEAR(row.loss(), std::log(2), 1e-6);
  EXPECT_NEAR(row.kl, 0.5 * std::log(2) - 0.25 * std::log(2), 1e-6);
  EXPECT_FALSE(row.agrees);
  EXPECT_TRUE(row.reference_hits);
  EXPECT_FALSE(row.hits);
}

TEST(EvalStatistics, DivergenceGoesFromTheReference) {
  const std::vector<float> sure = logits_of({0.98, 0.01, 0.01});
  const std::vector<float> unsure = logits_of({0.34, 0.33, 0.33});
  const double expected = 0.98 * std::log(0.98 / 0.34) + 2 * 0.01 * std::log(0.01 / 0.33);
  EXPECT_NEAR(compare_row(sure, unsure, 0).kl, expected, 1e-6);
  EXPECT_NE(compare_row(sure, unsure, 0).kl, compare_row(unsure, sure, 0).kl);
}

TEST(EvalStatistics, LargeLogitsDoNotOverflow) {
  const RowComparison row =
      compare_row(std::vector<float>{1e4F, 0.0F}, std::vector<float>{1e4F - 1, 0.0F}, 0);
  EXPECT_NEAR(row.nll, 0, 1e-9);
  EXPECT_NEAR(row.kl, 0, 1e-9);
}

TEST(EvalStatistics, ATokenThatIsRuledOutAddsNothing) {
  const float out = -std::numeric_limits<float>::infinity();
  const RowComparison row =
      compare_row(std::vector<float>{0, 0, out}, std::vector<float>{0, 0, 0}, 0);
  EXPECT_NEAR(row.kl, std::log(3.0 / 2.0), 1e-6);
}

TEST(EvalStatistics, TheLowestIdWinsATie) {
  EXPECT_TRUE(compare_row(std::vector<float>{1, 1, 0}, std::vector<float>{1, 0, 0}, 2).agrees);
  EXPECT_FALSE(compare_row(std::vector<float>{1, 1, 0}, std::vector<float>{0, 1, 0}, 2).agrees);
}

TEST(EvalStatistics, SummaryOfRows) {
  const std::vector<RowComparison> rows = {row_with(1, 1.5, 0.1), row_with(2, 1.5, 0.4, false),
                                           row_with(3, 4.5, 0.1), row_with(2, 2.5, 0)};
  const EvalFigures figures = summarise(rows);
  EXPECT_EQ(figures.tokens, 4);
  EXPECT_DOUBLE_EQ(figures.reference_nll, 2);
  EXPECT_DOUBLE_EQ(figures.nll, 2.5);
  EXPECT_DOUBLE_EQ(figures.perplexity, std::exp(2.5));
  EXPECT_DOUBLE_EQ(figures.reference_perplexity, std::exp(2));
  EXPECT_DOUBLE_EQ(figures.loss, 0.5);
  EXPECT_DOUBLE_EQ(figures.mean_kl, 0.15);
  EXPECT_DOUBLE_EQ(figures.worst_kl, 0.4);
  EXPECT_DOUBLE_EQ(figures.agreement, 0.75);
}

TEST(EvalStatistics, ADivergenceThatIsNoNumberIsTheWorst) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const auto& kls : {std::array{nan, 0.5}, std::array{0.5, nan}}) {
    EXPECT_TRUE(
        std::isnan(summarise(std::array{row_with(1, 1, kls[0]), row_with(1, 1, kls[1])}).worst_kl));
  }
}

TEST(EvalStatistics, StandardErrorIsThatOfPairedDifferences) {
  // Differences 0.5, -0.5, 1.5, 0.5: variance 2/3 with n - 1, so the mean's is 2/3/4.
  const std::vector<RowComparison> rows = {row_with(1, 1.5), row_with(2, 1.5), row_with(3, 4.5),
                                           row_with(2, 2.5)};
  EXPECT_NEAR(summarise(rows).loss_standard_error, std::sqrt(2.0 / 3.0 / 4.0), 1e-12);
  // A shift of all rows alike has none.
  const std::vector<RowComparison> shifted = {row_with(1, 2), row_with(5, 6), row_with(0, 1)};
  EXPECT_EQ(summarise(shifted).loss_standard_error, 0);
}

TEST(EvalStatistics, NoRowsAndOneRow) {
  EXPECT_EQ(summarise({}).tokens, 0);
  const EvalFigures figures = summarise(std::vector<RowComparison>{row_with(1, 2)});
  EXPECT_EQ(figures.loss, 1);
  EXPECT_EQ(figures.loss_standard_error, 0);
}

}  // namespace eval_statistics_test
}  // namespace karez
