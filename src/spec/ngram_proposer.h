// Prompt lookup: what followed the last time that these tokens stood here.
//
// The longest end of the sequence that occurs in it before (at most max_match tokens, at least
// min_match; the latest such place) is taken to go on as it did there. Pays where answers repeat
// their prompt or themselves: editing, code, tables, retrieval ("Prompt Lookup Decoding", A.
// Saxena, 2023).
// Confidence: by the length of the match.
// Thread: as DraftProposer. Keeps nothing. Cost: one pass over the tokens.
#pragma once

#include "spec/draft_proposer.h"

namespace karez {

struct NgramOptions {
  int min_match = 2;   // >= 1
  int max_match = 16;  // >= min_match
};

class NgramProposer final : public DraftProposer {
 public:
  explicit NgramProposer(const NgramOptions& options) : options_(options) {}

  std::vector<DraftProposal> propose(std::span<const DraftQuery> queries) override;
  void forget(DraftSequence /*sequence*/) override {}
  bool is_free() const override { return true; }

 private:
  NgramOptions options_;
};

}  // namespace karez
