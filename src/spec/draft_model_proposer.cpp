#include "spec/draft_model_proposer.h"

#include <algorithm>
#include <utility>

#include "model/forward_batch.h"

namespace karez {

// The rows of one sequence in a forward().
struct DraftModelProposer::Rows {
  std::size_t query = 0;
  State* state = nullptr;
  std::vector<TokenId> tokens;
  bool wants_token = false;  // what follows the last one
  TokenId next = 0;
};

DraftModelProposer::DraftModelProposer(std::unique_ptr<ModelRunner> runner,
                                       std::unique_ptr<KVCacheManager> kv,
                                       const DraftModelOptions& options)
    : options_(options), kv_(std::move(kv)), runner_(std::move(runner)) {}

DraftModelProposer::~DraftModelProposer() {
  for (auto& [sequence, state] : states_) {
    drop(state);
  }
}

void DraftModelProposer::drop(State& state) {
  if (!state.kv.is_none()) {
    kv_->close(state.kv);
  }
  state.kv = SequenceId::none();
  state.tokens.clear();
}

void DraftModelProposer::forget(DraftSequence sequence) {
  const auto found = states_.find(sequence);
  if (found != states_.end()) {
    drop(found->second);
    states_.erase(found);
  }
}

void DraftModelProposer::align(State& state, std::span<const TokenId> tokens) {
  const std::size_t limit = std::min(state.tokens.size(), tokens.size() - 1);
  const auto differ = std::ranges::mismatch(std::span(state.tokens).first(limit), tokens);
  const auto common = static_cast<std::size_t>(differ.in2 - tokens.begin());
  if (!state.kv.is_none() && !kv_->truncate(state.kv, static_cast<int>(common))) {
    drop(state);  // a window has let go of what it would need
  }
  if (state.kv.is_none()) {
    state.kv = kv_->open();
  } else {
    state.tokens.resize(common);
  }
}

bool DraftModelProposer::make_room(State& state, int num_tokens) {
  while (!kv_->extend(state.kv, num_tokens)) {
    State* oldest = nullptr;
    for (auto& [sequence, other] : states_) {
      if (!other.kv.is_none() && other.last_use < num_calls_ &&
          (oldest == nullptr || other.last_use < oldest->last_use)) {
        oldest = &other;
      }
    }
    if (oldest == nullptr) {
      return false;
    }
    drop(*oldest);
  }
  return true;
}

bool DraftModelProposer::run(std::span<Rows> rows) {
  ForwardBatch batch;
  for (const Rows& part : rows) {
    SequenceRows sequence;
    for (std::size_t group = 0; group < kv_->layer_groups().size(); ++group) {
      sequence.tables.push_back(kv_->table(part.state->kv, static_cast<int>(group)));
    }
    sequence.num_rows = static_cast<int>(part.tokens.size());
    sequence.first_position = static_cast<int>(part.state->tokens.size());
    sequence.first_row = static_cast<int>(batch.tokens.size());
    batch.sequences.push_back(std::move(sequence));
    batch.tokens.insert(batch.tokens.end(), part.tokens.begin(), part.tokens.end());
    if (part.wants_token) {
      batch.output_rows.push_back(static_cast<int>(batch.tokens.size()) - 1);
    }
  }
  const auto logits = runner_->forward(batch, *kv_);
  if (!logits) {
    for (const Rows& part : rows) {
      drop(*part.state);
    }
    return false;
  }
  const auto vocab_size = static_cast<std::size_t>(runner_->config().vocab_size);
  std::span<const float> left = *logits;
  for (Rows& part : rows) {
    std::vector<TokenId>& tokens = part.state->tokens;
    tokens.insert(tokens.end(), part.tokens.begin(), part.tokens.end());
    if (part.wants_token) {
      const auto row = left.first(vocab_size);
      part.next = static_cast<TokenId>(std::ranges::max_element(row) - row.begin());
      left = left.subspan(vocab_size);
    }
  }
  return true;
}

std::vector<DraftProposal> DraftModelProposer::propose(std::span<const DraftQuery> queries) {
  std::vector<DraftProposal> proposals(queries.size());
  ++num_calls_;
  // Those asked for now are not dropped for each other.
  for (const DraftQuery& query : queries) {
    states_[query.sequence].last_use = num_calls_;
  }
  std::vector<Rows> rows;
  int rows_left = options_.max_batch_tokens;
  for (std::size_t i = 0; i < queries.size(); ++i) {
    const std::span<const TokenId> tokens = queries[i].tokens;
    if (static_cast<int>(tokens.size()) >= options_.context_tokens) {
      continue;
    }
    State& state = states_.at(queries[i].sequence);
    align(state, tokens);
    const auto missing = tokens.subspan(state.tokens.size());
    const int count = std::min(static_cast<int>(missing.size()), rows_left);
    const bool is_all = count == static_cast<int>(missing.size());
    // For the drafts too, at once: a window lets go of what the first of its new rows does not
    // read, and the next call cuts back to there.
    if (count == 0 || !make_room(state, count + (is_all ? queries[i].max_drafts - 1 : 0))) {
      continue;
    }
    rows_left -= count;
    const auto first = missing.first(static_cast<std::size_t>(count));
    rows.push_back({i, &state, {first.begin(), first.end()}, is_all, TokenId{0}});
  }
  while (!rows.empty() && run(rows)) {
    std::vector<Rows> next;
    for (Rows& part : rows) {
      if (!part.wants_token) {
        continue;
      }
      const DraftQuery& query = queries[part.query];
      proposals[part.query].confidence = kMostConfident;
      std::vector<TokenId>& drafts = proposals[part.query].tokens;
      drafts.push_back(part.next);
      const auto length = static_cast<int>(query.tokens.size() + drafts.size());
      if (static_cast<int>(drafts.size()) < query.max_drafts && length < options_.context_tokens) {
        next.push_back({part.query, part.state, {part.next}, true, TokenId{0}});
      }
    }
    rows = std::move(next);
  }
  return proposals;
}

}  // namespace karez
