#include "engine/eval_statistics.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "base/check.h"

namespace karez {
namespace {

// Of a row: probability i is exp(logits[i] - log_total).
struct Distribution {
  std::span<const float> logits;
  double log_total = 0;
  std::size_t best = 0;

  double log_probability(std::size_t i) const { return static_cast<double>(logits[i]) - log_total; }
};

Distribution distribution_of(std::span<const float> logits) {
  Distribution result{logits};
  for (std::size_t i = 1; i < logits.size(); ++i) {
    if (logits[i] > logits[result.best]) {
      result.best = i;
    }
  }
  const auto largest = static_cast<double>(logits[result.best]);
  double total = 0;
  for (const float logit : logits) {
    total += std::exp(static_cast<double>(logit) - largest);
  }
  result.log_total = largest + std::log(total);
  return result;
}

double divergence(const Distribution& p, const Distribution& q) {
  double sum = 0;
  for (std::size_t i = 0; i < p.logits.size(); ++i) {
    const double log_p = p.log_probability(i);
    const double term = std::exp(log_p) * (log_p - q.log_probability(i));
    // A token that p rules out, with logit -inf, adds nothing.
    sum += std::isinf(log_p) && log_p < 0 ? 0 : term;
  }
  return sum;
}

}  // namespace

RowComparison compare_row(std::span<const float> reference, std::span<const float> logits,
                          TokenId target) {
  KAREZ_CHECK(reference.size() == logits.size() && target >= 0 &&
                  static_cast<std::size_t>(target) < logits.size(),
              "two rows of one vocabulary, and a token of it");
  const Distribution p = distribution_of(reference);
  const Distribution q = distribution_of(logits);
  const auto token = static_cast<std::size_t>(target);
  return {.reference_nll = -p.log_probability(token),
          .nll = -q.log_probability(token),
          .kl = divergence(p, q),
          .agrees = p.best == q.best,
          .reference_hits = p.best == token,
          .hits = q.best == token};
}

void compare_rows(std::span<const float> reference, std::span<const float> logits,
                  std::span<const TokenId> targets, std::vector<RowComparison>& rows) {
  KAREZ_CHECK(!targets.empty() && logits.size() % targets.size() == 0, "whole rows");
  const std::size_t vocab = logits.size() / targets.size();
  for (std::size_t row = 0; row < targets.size(); ++row) {
    rows.push_back(compare_row(reference.subspan(row * vocab, vocab),
                               logits.subspan(row * vocab, vocab), targets[row]));
  }
}

EvalFigures summarise(std::span<const RowComparison> rows) {
  EvalFigures figures;
  if (rows.empty()) {
    return figures;
  }
  const auto count = static_cast<double>(rows.size());
  figures.tokens = static_cast<std::int64_t>(rows.size());
  double loss = 0;
  for (const RowComparison& row : rows) {
    figures.reference_nll += row.reference_nll / count;
    figures.nll += row.nll / count;
    loss += row.loss();
    figures.mean_kl += row.kl / count;
    if (!std::isnan(figures.worst_kl) && !(row.kl <= figures.worst_kl)) {
      figures.worst_kl = row.kl;
    }
    figures.agreement += row.agrees ? 1 / count : 0;
  }
  figures.loss = loss / count;
  figures.reference_perplexity = std::exp(figures.reference_nll);
  figures.perplexity = std::exp(figures.nll);
  if (rows.size() > 1) {
    double squares = 0;
    for (const RowComparison& row : rows) {
      squares += (row.loss() - figures.loss) * (row.loss() - figures.loss);
    }
    figures.loss_standard_error = std::sqrt(squares / (count - 1) / count);
  }
  return figures;
}

}  // namespace karez
