// How many drafts are worth their rows, from what was accepted so far and what rows cost.
//
// With acceptance p of a draft whose predecessors were right, the k-th draft of a step is accepted
// with p^k. It pays while that is more than its cost in tokens (the time of its row over the time
// that the step takes for one token). Where not even the first does, drafting is off for the
// sequence, until acceptance has risen: a free proposer is judged all the time, another is tried
// again after a while.
// Thread: values.
#pragma once

#include <array>
#include <cstdint>

#include "spec/draft_proposer.h"

namespace karez {

// The time of a step as a + b x rows, by least squares with fading weights.
class StepCost {
 public:
  // A step that nobody computed a prompt in.
  void add(int rows, double seconds);
  // The cost of one more row in tokens, in steps of base_rows that give a token each.
  // more_seconds: what a draft takes besides its row.
  double row_in_tokens(int base_rows, double more_seconds) const;

 private:
  double weight_ = 0;
  double rows_ = 0;  // sums, with weights
  double seconds_ = 0;
  double rows_rows_ = 0;
  double rows_seconds_ = 0;
};

class DraftPolicy {
 public:
  // Drafts to ask for, of some confidence; 0: off. cost: StepCost::row_in_tokens().
  int num_drafts(int confidence, double cost, int max_drafts) const;
  // num_drafts were verified, the first `accepted` of them were right.
  void note(int confidence, int num_drafts, int accepted);
  double acceptance(int confidence) const {
    return acceptance_[static_cast<std::size_t>(confidence)];
  }

 private:
  // Before anything is known: matches of a few tokens are chance, longer ones hardly.
  std::array<double, kDraftConfidences> acceptance_ = {0.4, 0.6, 0.85};
};

}  // namespace karez
