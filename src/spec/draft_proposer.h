// Guesses how sequences go on, so that one forward pass can verify several tokens (speculative
// decoding: "Fast Inference from Transformers via Speculative Decoding", arXiv 2211.17192).
//
// A guess costs time and nothing else: whoever verifies it keeps what the target model would have
// said anyway. Proposers do not know requests, sampling or the target's KV.
// Thread: one caller at a time.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

#include "base/token.h"
#include "kv/kv_types.h"

namespace karez {

// A sequence that is drafted for; the numbers are the caller's.
struct DraftSequence {
  std::uint64_t request = 0;
  int choice = 0;
  friend auto operator<=>(const DraftSequence&, const DraftSequence&) = default;
};

struct DraftQuery {
  DraftSequence sequence;
  std::span<const TokenId> tokens;  // all of it, the prompt too; not empty
  int max_drafts = 1;
  // The target's own, of all tokens but the last. It must be as it was when a proposal is there.
  SequenceId kv = SequenceId::none();
};

struct DraftProposal {
  std::vector<TokenId> tokens;  // what follows; at most max_drafts, may be empty
  // How much the proposer itself believes in it, 0: least. Acceptance is measured for each apart.
  int confidence = 0;
};

inline constexpr int kDraftConfidences = 3;
inline constexpr int kMostConfident = kDraftConfidences - 1;

class DraftProposer {
 public:
  virtual ~DraftProposer() = default;
  // [queries]
  virtual std::vector<DraftProposal> propose(std::span<const DraftQuery> queries) = 0;
  // The sequence has ended, or is not drafted for at present.
  virtual void forget(DraftSequence sequence) = 0;
  // A proposal takes no time worth counting, so that guesses can be judged without using them. One
  // that does take time has the highest confidence in all.
  virtual bool is_free() const = 0;
};

}  // namespace karez
