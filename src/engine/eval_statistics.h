// What one distribution over the next token costs against another, and figures over many rows.
//
// Pure arithmetic on logits, in f64. Knows no models.
// Thread: pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/token.h"

namespace karez {

// One row's logits against those of the reference. Equal logits give exactly equal nlls and 0.
struct RowComparison {
  double reference_nll = 0;  // nats: -log of the target's probability
  double nll = 0;
  double kl = 0;                // of the row from the reference, sum p (log p - log q), nats
  bool agrees = false;          // both have the same best token; ties go to the lowest id
  bool reference_hits = false;  // the reference's best token is the target
  bool hits = false;

  double loss() const { return nll - reference_nll; }
};

// Both: f32 [vocab]. Logits that are not finite make figures that are not.
// Requires: equal sizes > 0; target is within.
RowComparison compare_row(std::span<const float> reference, std::span<const float> logits,
                          TokenId target);

// Rows of both, f32 [targets][vocab], behind those that `rows` has.
// Requires: equal sizes, a multiple of the targets' number.
void compare_rows(std::span<const float> reference, std::span<const float> logits,
                  std::span<const TokenId> targets, std::vector<RowComparison>& rows);

struct EvalFigures {
  std::int64_t tokens = 0;
  double reference_nll = 0;  // means, nats a token
  double nll = 0;
  double reference_perplexity = 1;  // e to the power of them
  double perplexity = 1;
  double loss = 0;                 // nll - reference_nll
  double loss_standard_error = 0;  // of that mean, from the paired differences of the rows
  double mean_kl = 0;
  double worst_kl = 0;
  double agreement = 0;  // share of the rows, in [0, 1]
};

// No rows: zeros.
EvalFigures summarise(std::span<const RowComparison> rows);

}  // namespace karez
