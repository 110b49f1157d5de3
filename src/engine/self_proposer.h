// The target drafts for itself, reading little: its rows attend to the blocks that they select
// among those in the fast tier, and wait for none (self-speculation on a sparse KV cache, as in
// MagicDec, arXiv 2408.11049, and TriForce, arXiv 2404.11912).
//
// Draft tokens are computed one by one, those of all sequences in one batch, into room behind the
// sequences' own tokens, which is given back before propose() returns. Their keys are written again
// when they are verified. What their rows wanted and did not find may be fetched (--lookahead
// self): the next steps will want it too. Confidence: always the highest. A forward() that fails,
// or too few slots, give no drafts. Thread: as DraftProposer; no step runs. Owns: nothing.
#pragma once

#include "engine/block_loader.h"
#include "kv/kv_cache_manager.h"
#include "model/model_runner.h"
#include "spec/draft_proposer.h"

namespace karez {

class SelfProposer final : public DraftProposer {
 public:
  // All borrowed. key_index: of kv's blocks; null: rows attend to everything, which is exact and
  // not worth it. loader: null without a home tier.
  SelfProposer(ModelRunner& runner, KVCacheManager& kv, const KeyIndex* key_index,
               BlockLoader* loader)
      : runner_(runner), kv_(kv), key_index_(key_index), loader_(loader) {}

  // Requires: queries have their kv.
  std::vector<DraftProposal> propose(std::span<const DraftQuery> queries) override;
  void forget(DraftSequence /*sequence*/) override {}
  bool is_free() const override { return false; }

 private:
  struct Draft {
    std::size_t query;
    TokenId last;
    int position;  // of `last`
  };
  // What follows each `last`. False: the step failed.
  [[nodiscard]] bool run(std::span<const DraftQuery> queries, std::span<Draft> drafts);

  ModelRunner& runner_;
  KVCacheManager& kv_;
  const KeyIndex* key_index_;
  BlockLoader* loader_;
};

}  // namespace karez
