// Drafters without a model: from a function, which may know the answer, guess at random or lie.
//
// Thread: as DraftProposer.
#pragma once

#include <functional>
#include <set>
#include <utility>

#include "spec/draft_proposer.h"

namespace karez::test {

class FakeDraftProposer final : public DraftProposer {
 public:
  using Guess = std::function<std::vector<TokenId>(const DraftQuery& query)>;

  explicit FakeDraftProposer(Guess guess, bool is_free = false)
      : guess_(std::move(guess)), is_free_(is_free) {}

  std::vector<DraftProposal> propose(std::span<const DraftQuery> queries) override {
    std::vector<DraftProposal> proposals;
    for (const DraftQuery& query : queries) {
      known_.insert(query.sequence);
      asked_.push_back(query.max_drafts);
      proposals.push_back({guess_(query), is_free_ ? 0 : kMostConfident});
      if (static_cast<int>(proposals.back().tokens.size()) > query.max_drafts) {
        proposals.back().tokens.resize(static_cast<std::size_t>(query.max_drafts));
      }
    }
    return proposals;
  }
  void forget(DraftSequence sequence) override { known_.erase(sequence); }
  bool is_free() const override { return is_free_; }

  // Sequences that were asked for and not forgotten.
  const std::set<DraftSequence>& known() const { return known_; }
  // max_drafts of all queries so far.
  const std::vector<int>& asked() const { return asked_; }

 private:
  Guess guess_;
  bool is_free_;
  std::set<DraftSequence> known_;
  std::vector<int> asked_;
};

}  // namespace karez::test
