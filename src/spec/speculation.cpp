#include "spec/speculation.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"

namespace karez {
namespace {

constexpr int kTryAgainTokens = 64;
constexpr double kLearning = 0.2;  // weight of one call in the time of a proposal

}  // namespace

Speculation::Speculation(const SpeculationOptions& options, std::unique_ptr<DraftProposer> proposer)
    : options_(options), proposer_(std::move(proposer)) {
  KAREZ_CHECK(options.max_drafts >= 0 && options.max_drafts <= kMaxDrafts &&
                  options.min_drafts >= 0 && options.min_drafts <= options.max_drafts,
              "the options of speculation are in range");
}

std::vector<DraftRows> Speculation::draft(std::span<const DraftQuery> queries) {
  using SteadyClock = std::chrono::steady_clock;
  std::vector<DraftRows> drafts(queries.size());
  const double cost =
      cost_.row_in_tokens(static_cast<int>(queries.size()), propose_seconds_per_token_);
  std::vector<DraftQuery> asked;
  std::vector<std::size_t> index;  // in queries
  for (std::size_t i = 0; i < queries.size(); ++i) {
    State& state = states_[queries[i].sequence];
    state.guess.clear();
    const int most = std::min(queries[i].max_drafts, options_.max_drafts);
    const int pays =
        std::max(state.policy.num_drafts(kMostConfident, cost, most), options_.min_drafts);
    const bool tries_again = state.tokens_off >= kTryAgainTokens;
    const int wanted = proposer_->is_free() ? most : std::min(most, tries_again ? 1 : pays);
    const int probes = wanted > 0 || proposer_->is_free() ? options_.num_probes : 0;
    const int all = std::min(wanted + probes, queries[i].max_drafts);
    if (all > 0) {
      asked.push_back({queries[i].sequence, queries[i].tokens, all, queries[i].kv});
      index.push_back(i);
    } else if (most > 0 && pays == 0) {
      switch_off(state, true);
    }
  }
  if (asked.empty()) {
    return drafts;
  }
  const auto start = SteadyClock::now();
  std::vector<DraftProposal> proposals = proposer_->propose(asked);
  const double seconds = std::chrono::duration<double>(SteadyClock::now() - start).count();
  stats_.propose_seconds += seconds;
  std::size_t proposed = 0;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    DraftProposal& proposal = proposals[i];
    State& state = states_.at(asked[i].sequence);
    proposed += proposal.tokens.size();
    state.confidence = proposal.confidence;
    if (proposal.tokens.empty()) {
      continue;
    }
    const int most = std::min(asked[i].max_drafts, options_.max_drafts);
    int count = std::max(state.policy.num_drafts(proposal.confidence, cost, most),
                         std::min(options_.min_drafts, most));
    if (!proposer_->is_free() && state.tokens_off >= kTryAgainTokens) {
      count = std::max(count, 1);
      state.tokens_off = 0;
    }
    switch_off(state, count == 0 && options_.max_drafts > 0);
    state.guess = std::move(proposal.tokens);
    const int num_guesses = static_cast<int>(state.guess.size());
    const int kept = std::min(count, num_guesses);
    DraftRows& rows = drafts[index[i]];
    rows.num_probes = std::min(options_.num_probes, num_guesses - kept);
    rows.tokens.assign(state.guess.begin(), state.guess.begin() + kept + rows.num_probes);
  }
  if (proposed > 0 && !proposer_->is_free()) {
    propose_seconds_per_token_ +=
        kLearning * (seconds / static_cast<double>(proposed) - propose_seconds_per_token_);
  }
  return drafts;
}

void Speculation::note(DraftSequence sequence, int num_verified, std::span<const TokenId> came) {
  const auto found = states_.find(sequence);
  if (found == states_.end() || came.empty()) {
    return;
  }
  State& state = found->second;
  const int accepted = static_cast<int>(came.size()) - 1;
  state.tokens_off += state.is_off ? static_cast<int>(came.size()) : 0;
  if (num_verified > 0) {
    state.policy.note(state.confidence, num_verified, accepted);
    ++stats_.drafts;
    stats_.draft_tokens += num_verified;
    stats_.accepted_tokens += accepted;
    for (int i = 0; i < accepted; ++i) {
      ++stats_.accepted_at[static_cast<std::size_t>(i)];
    }
  } else if (!state.guess.empty()) {
    state.policy.note(state.confidence, 1, state.guess.front() == came.front() ? 1 : 0);
  }
  state.guess.clear();
}

void Speculation::switch_off(State& state, bool off) {
  if (off == state.is_off) {
    return;
  }
  state.is_off = off;
  state.tokens_off = 0;
  stats_.switched_off += off ? 1 : 0;
  stats_.sequences_off += off ? 1 : -1;
}

void Speculation::forget(DraftSequence sequence) {
  const auto found = states_.find(sequence);
  if (found == states_.end()) {
    return;
  }
  switch_off(found->second, false);
  states_.erase(found);
  proposer_->forget(sequence);
}

}  // namespace karez
