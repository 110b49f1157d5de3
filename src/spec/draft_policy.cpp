#include "spec/draft_policy.h"

#include <algorithm>
#include <cmath>

namespace karez {
namespace {

constexpr double kFading = 0.98;    // of what a step said, with each step after it
constexpr double kLearning = 0.15;  // weight of one draft in the acceptance
constexpr double kMostCertain = 0.99;
// Of a row, before steps of different sizes have been seen. Rather too much: whoever drafts finds
// out, and whoever does not has lost little.
constexpr double kFirstGuess = 0.6;
// How much steps of different sizes say before they count as much as the first guess: the sum of
// squared distances from the mean size. Where few steps have a draft it grows slowly, by less than
// a quarter with each step, but it is those that drafting may slow down.
constexpr double kDoubt = 2;
constexpr double kLeastCost = 0.01;

}  // namespace

void StepCost::add(int rows, double seconds) {
  for (double* sum : {&weight_, &rows_, &seconds_, &rows_rows_, &rows_seconds_}) {
    *sum *= kFading;
  }
  weight_ += 1;
  rows_ += rows;
  seconds_ += seconds;
  rows_rows_ += static_cast<double>(rows) * rows;
  rows_seconds_ += rows * seconds;
}

double StepCost::row_in_tokens(int base_rows, double more_seconds) const {
  if (weight_ == 0) {
    return kFirstGuess;
  }
  const double mean_rows = rows_ / weight_;
  const double mean_seconds = seconds_ / weight_;
  const double variance = rows_rows_ / weight_ - mean_rows * mean_rows;
  const double covariance = rows_seconds_ / weight_ - mean_rows * mean_seconds;
  const double first_guess = kFirstGuess * mean_seconds / mean_rows;
  const double measured =
      (weight_ * covariance + kDoubt * first_guess) / (weight_ * std::max(variance, 0.0) + kDoubt);
  // Noise may say that rows are free, or that there is nothing else.
  const double slope = std::clamp(measured, 0.0, mean_seconds / mean_rows);
  const double base_seconds =
      std::max(mean_seconds + slope * (base_rows - mean_rows), 0.1 * mean_seconds);
  return std::max((slope + more_seconds) * base_rows / base_seconds, kLeastCost);
}

int DraftPolicy::num_drafts(int confidence, double cost, int max_drafts) const {
  const double accepted = std::min(acceptance(confidence), kMostCertain);
  if (accepted <= cost) {
    return 0;
  }
  const double most = cost >= 1 ? 0 : std::log(cost) / std::log(accepted);
  return static_cast<int>(std::clamp(most, 0.0, static_cast<double>(max_drafts)));
}

void DraftPolicy::note(int confidence, int num_drafts, int accepted) {
  double& acceptance = acceptance_[static_cast<std::size_t>(confidence)];
  for (int i = 0; i < accepted; ++i) {
    acceptance += kLearning * (1 - acceptance);
  }
  if (accepted < num_drafts) {
    acceptance -= kLearning * acceptance;
  }
}

}  // namespace karez
