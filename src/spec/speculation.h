// Who is drafted for, with how many tokens, and what came of it.
//
//   before a step: draft(queries)  -->  rows beside each sequence's own  -->  note() for each query
//
// How many drafts a sequence gets is its DraftPolicy's to say; what a row costs is measured. A
// sequence for which drafting does not pay is switched off, and counted; its guesses are still
// compared with what came where that is free, else it is tried again after a while.
// Thread: one caller at a time.
// Owns: the proposer, and a policy for each sequence from its first query to forget().
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "spec/draft_policy.h"
#include "spec/draft_proposer.h"

namespace karez {

inline constexpr int kMaxDrafts = 64;  // of one sequence and step

struct SpeculationOptions {
  int max_drafts = 16;  // 0 to kMaxDrafts; 0: nothing is verified
  int min_drafts = 0;   // even where fewer would pay; 0 to max_drafts
  int num_probes = 0;   // guesses behind the drafts that are not verified (--lookahead probe)
};

struct DraftRows {
  std::vector<TokenId> tokens;
  int num_probes = 0;  // the last of them
};

struct SpeculationStats {
  std::int64_t drafts = 0;           // times that a sequence's drafts were verified
  std::int64_t draft_tokens = 0;     // of them
  std::int64_t accepted_tokens = 0;  // of these
  std::array<std::int64_t, kMaxDrafts> accepted_at = {};  // index: the place among the drafts
  std::int64_t switched_off = 0;  // times that drafting for a sequence was found not to pay
  int sequences_off = 0;          // now
  double propose_seconds = 0;

  // For tests.
  double acceptance() const {
    return draft_tokens == 0
               ? 0
               : static_cast<double>(accepted_tokens) / static_cast<double>(draft_tokens);
  }
};

class Speculation {
 public:
  // Requires: options are in their ranges.
  Speculation(const SpeculationOptions& options, std::unique_ptr<DraftProposer> proposer);

  // [queries]. queries: every sequence that generates in the step; max_drafts of a query: what it
  // can use, 0 for none.
  std::vector<DraftRows> draft(std::span<const DraftQuery> queries);
  // After the step: so many of the drafts were verified, and these tokens came, one more than were
  // accepted.
  void note(DraftSequence sequence, int num_verified, std::span<const TokenId> came);
  // The step's rows and time. Only of steps in which no prompt was computed.
  void note_step(int rows, double seconds) { cost_.add(rows, seconds); }
  void forget(DraftSequence sequence);

  const SpeculationStats& stats() const { return stats_; }

 private:
  struct State {
    DraftPolicy policy;
    std::vector<TokenId> guess;  // of the step at hand
    int confidence = 0;
    bool is_off = false;
    int tokens_off = 0;  // that came since
  };

  void switch_off(State& state, bool off);

  SpeculationOptions options_;
  std::unique_ptr<DraftProposer> proposer_;
  StepCost cost_;
  double propose_seconds_per_token_ = 0;
  std::map<DraftSequence, State> states_;
  SpeculationStats stats_;
};

}  // namespace karez
