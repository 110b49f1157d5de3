// Drafts of a smaller model with the same vocabulary, which reads along with its own KV.
//
// Each sequence has its draft KV, as far as it was needed; tokens that the target did not take are
// cut off, tokens that are new to it are computed when they are asked for, those of all sequences
// in one batch. When the draft KV is full, that of the sequence that was asked for longest ago
// goes. Drafts are the most likely tokens. Confidence: always the highest. A forward() that fails
// gives no drafts, and the sequences start anew. Thread: as DraftProposer. Owns: the model, its KV.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "kv/kv_cache_manager.h"
#include "model/model_runner.h"
#include "spec/draft_proposer.h"

namespace karez {

struct DraftModelOptions {
  int context_tokens = 0;      // no draft is behind it
  int max_batch_tokens = 512;  // rows of one forward(); a sequence that is behind by more waits
};

class DraftModelProposer final : public DraftProposer {
 public:
  DraftModelProposer(std::unique_ptr<ModelRunner> runner, std::unique_ptr<KVCacheManager> kv,
                     const DraftModelOptions& options);
  ~DraftModelProposer() override;

  std::vector<DraftProposal> propose(std::span<const DraftQuery> queries) override;
  void forget(DraftSequence sequence) override;
  bool is_free() const override { return false; }

 private:
  struct State {
    SequenceId kv;
    std::vector<TokenId> tokens;  // whose KV is there; the sequence may have room for more
    std::uint64_t last_use = 0;
  };
  struct Rows;

  // Cuts what the state has down to a beginning of the tokens, their last one left out.
  void align(State& state, std::span<const TokenId> tokens);
  // Slots for so many more tokens, if need be those of others that are not asked for.
  [[nodiscard]] bool make_room(State& state, int num_tokens);
  void drop(State& state);
  // One forward() of all rows. False: it failed.
  [[nodiscard]] bool run(std::span<Rows> rows);

  DraftModelOptions options_;
  std::unique_ptr<KVCacheManager> kv_;
  std::unique_ptr<ModelRunner> runner_;
  std::map<DraftSequence, State> states_;
  std::uint64_t num_calls_ = 0;
};

}  // namespace karez
