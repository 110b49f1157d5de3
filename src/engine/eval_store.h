// A KV store for evaluation, and sequences in it that different runners continue.
//
// Thread: one caller.
// Owns: EvalStore the KV store and the key index; EvalSequence its sequence.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "attention/key_index.h"
#include "base/status.h"
#include "kv/kv_cache_manager.h"
#include "model/model_runner.h"

namespace karez {

struct EvalStore {
  std::unique_ptr<KVCacheManager> kv;
  std::optional<KeyIndex> index;  // of the blocks' keys

  // Room for one sequence of max_tokens and two forks of it that add fork_tokens each.
  // centres: as KeyIndex::create() takes them.
  // Fails: as KVCacheManager::create() and KeyIndex::create().
  static Expected<EvalStore> create(const KVCacheSpec& spec, std::optional<KeyIndexKind> index_kind,
                                    std::int64_t max_tokens, std::int64_t fork_tokens,
                                    int step_tokens, std::vector<float> centres);
};

class EvalSequence {
 public:
  explicit EvalSequence(EvalStore& store) : EvalSequence(store, store.kv->open()) {}
  EvalSequence(EvalSequence&& other) noexcept;
  EvalSequence& operator=(EvalSequence&&) = delete;
  ~EvalSequence();

  // Shares all blocks. Requires: the length is a multiple of kBlockSize, so that neither side
  // writes into a block of the other.
  EvalSequence fork() const;
  SequenceId id() const { return id_; }
  int num_tokens() const;
  BlockTableView table(int group) const;

  // Puts what is left of each block after 4 bits a number (archive_page.h) in its place. The index
  // stays as it is. Requires: whole blocks, and no other sequence has them.
  void archive_and_restore();

  // One step of the runner with all tokens as rows. Rows from first_sparse_position on select.
  // Returns: f32 [tokens][vocab] if wants_logits, else nothing; valid until the runner's next step.
  // queries: keeps those of the rows; null: nobody asks for them.
  // Fails: as ModelRunner::forward(). Requires: room in the store.
  Expected<std::span<const float>> append(ModelRunner& runner, std::span<const TokenId> tokens,
                                          int first_sparse_position, bool wants_logits,
                                          QueryRing* queries = nullptr);

 private:
  EvalSequence(EvalStore& store, SequenceId id) : store_(&store), id_(id) {}

  EvalStore* store_;  // null: moved from
  SequenceId id_;
};

// Rows of a step that wants logits: so many that these stay small.
int rows_with_logits(int vocab_size);

}  // namespace karez
