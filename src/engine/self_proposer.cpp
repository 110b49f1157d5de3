#include "engine/self_proposer.h"

#include <algorithm>

#include "base/check.h"
#include "engine/sequence_tables.h"

namespace karez {

bool SelfProposer::run(std::span<const DraftQuery> queries, std::span<Draft> drafts) {
  ForwardBatch batch;
  batch.key_index = key_index_;
  for (const Draft& draft : drafts) {
    SequenceRows rows;
    set_tables(rows, kv_, queries[draft.query].kv);
    rows.first_position = draft.position;
    rows.num_rows = 1;
    rows.num_hint_rows = 1;
    rows.first_row = static_cast<int>(batch.tokens.size());
    if (key_index_ != nullptr) {
      rows.first_sparse_position = draft.position;
    }
    batch.sequences.push_back(std::move(rows));
    batch.output_rows.push_back(static_cast<int>(batch.tokens.size()));
    batch.tokens.push_back(draft.last);
  }
  if (loader_ != nullptr) {
    loader_->begin_step(kv_, batch.sequences, LookaheadSource::kSelf);
  }
  const auto logits = runner_.forward(batch, kv_);
  bool is_lost = false;
  if (loader_ != nullptr) {
    is_lost = std::ranges::any_of(loader_->end_step(), &BlockLoader::SequenceReads::is_lost);
  }
  if (!logits || is_lost) {
    return false;
  }
  const auto vocab_size = static_cast<std::size_t>(runner_.config().vocab_size);
  for (std::size_t i = 0; i < drafts.size(); ++i) {
    const auto row = logits->subspan(i * vocab_size, vocab_size);
    drafts[i].last = static_cast<TokenId>(std::ranges::max_element(row) - row.begin());
    ++drafts[i].position;
  }
  return true;
}

std::vector<DraftProposal> SelfProposer::propose(std::span<const DraftQuery> queries) {
  std::vector<DraftProposal> proposals(queries.size());
  std::vector<Draft> drafts;
  for (std::size_t i = 0; i < queries.size(); ++i) {
    const DraftQuery& query = queries[i];
    const int num_tokens = kv_.num_tokens(query.kv);
    KAREZ_CHECK(num_tokens + 1 == static_cast<int>(query.tokens.size()),
                "the KV has all tokens but the last");
    // All at once, as they are verified: see Scheduler::make_room_for_drafts().
    if (kv_.slots_needed(query.kv, query.max_drafts) <= kv_.slots_available() &&
        kv_.extend(query.kv, query.max_drafts)) {
      drafts.push_back({i, query.tokens.back(), num_tokens});
    }
  }
  const std::vector<Draft> extended = drafts;
  while (!drafts.empty() && run(queries, drafts)) {
    for (const Draft& draft : drafts) {
      proposals[draft.query].confidence = kMostConfident;
      proposals[draft.query].tokens.push_back(draft.last);
    }
    std::erase_if(drafts, [&](const Draft& draft) {
      return static_cast<int>(proposals[draft.query].tokens.size()) ==
             queries[draft.query].max_drafts;
    });
  }
  for (const Draft& draft : extended) {
    const bool is_shorter = kv_.truncate(queries[draft.query].kv, draft.position);
    KAREZ_CHECK(is_shorter, "what the first new row reads is still there");
  }
  return proposals;
}

}  // namespace karez
