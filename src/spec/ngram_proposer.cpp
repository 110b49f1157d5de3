#include "spec/ngram_proposer.h"

#include <cstddef>

namespace karez {
namespace {

constexpr std::size_t kMediumMatch = 4;
constexpr std::size_t kLongMatch = 8;

struct Match {
  std::size_t length = 0;
  std::size_t next = 0;  // the place of the token that followed
};

Match longest_match(std::span<const TokenId> tokens, std::size_t max_match) {
  Match best;
  const std::size_t last = tokens.size() - 1;
  for (std::size_t at = last; at-- > 0;) {
    if (tokens[at] != tokens[last]) {
      continue;
    }
    std::size_t length = 1;
    while (length < max_match && length <= at && tokens[at - length] == tokens[last - length]) {
      ++length;
    }
    if (length > best.length) {
      best = {length, at + 1};
      if (length == max_match) {
        break;
      }
    }
  }
  return best;
}

}  // namespace

std::vector<DraftProposal> NgramProposer::propose(std::span<const DraftQuery> queries) {
  std::vector<DraftProposal> proposals(queries.size());
  for (std::size_t i = 0; i < queries.size(); ++i) {
    const std::span<const TokenId> tokens = queries[i].tokens;
    const Match match = longest_match(tokens, static_cast<std::size_t>(options_.max_match));
    if (match.length < static_cast<std::size_t>(options_.min_match)) {
      continue;
    }
    DraftProposal& proposal = proposals[i];
    proposal.confidence = match.length >= kLongMatch     ? kMostConfident
                          : match.length >= kMediumMatch ? 1
                                                         : 0;
    for (std::size_t n = 0; n < static_cast<std::size_t>(queries[i].max_drafts); ++n) {
      // Behind the end of the sequence it goes on with its own guesses: a loop stays a loop.
      const std::size_t at = match.next + n;
      proposal.tokens.push_back(at < tokens.size() ? tokens[at]
                                                   : proposal.tokens[at - tokens.size()]);
    }
  }
  return proposals;
}

}  // namespace karez
