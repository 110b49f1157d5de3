#include "engine/eval_store.h"

#include <algorithm>
#include <utility>

#include "attention/archive_page.h"
#include "base/check.h"
#include "engine/sequence_tables.h"

namespace karez {

Expected<EvalStore> EvalStore::create(const KVCacheSpec& spec,
                                      std::optional<KeyIndexKind> index_kind,
                                      std::int64_t max_tokens, std::int64_t fork_tokens,
                                      int step_tokens, std::vector<float> centres) {
  constexpr std::int64_t kForks = 2;
  // A block at each end of a fork may be half used; windows let go in whole blocks.
  constexpr std::int64_t kSlackTokens = 4 * kBlockSize;
  const std::int64_t slots =
      spec.slots_for_sequence(max_tokens, step_tokens) +
      kForks * (spec.slots_for_sequence(fork_tokens + kSlackTokens, step_tokens));
  EvalStore store;
  auto kv = KVCacheManager::create(spec, slots * static_cast<std::int64_t>(spec.slot_bytes()));
  if (!kv) {
    return fail(kv.error());
  }
  store.kv = std::move(*kv);
  if (index_kind) {
    auto index = KeyIndex::create(spec, *index_kind, block_id_ranges(*store.kv), std::move(centres),
                                  kTwoLevelBlocks, pages_per_block(spec.type, spec.head_dim));
    if (!index) {
      return fail(index.error());
    }
    store.index.emplace(std::move(*index));
  }
  return store;
}

EvalSequence::EvalSequence(EvalSequence&& other) noexcept
    : store_(std::exchange(other.store_, nullptr)), id_(other.id_) {}

EvalSequence::~EvalSequence() {
  if (store_ != nullptr) {
    store_->kv->close(id_);
  }
}

EvalSequence EvalSequence::fork() const {
  const int length = num_tokens();
  KAREZ_CHECK(length % kBlockSize == 0, "a fork at the border of a block");
  const std::optional<SequenceId> id = store_->kv->fork(id_, length);
  KAREZ_CHECK(id.has_value(), "a fork of the whole length is always possible");
  return {*store_, *id};
}

int EvalSequence::num_tokens() const { return store_->kv->num_tokens(id_); }

BlockTableView EvalSequence::table(int group) const { return store_->kv->table(id_, group); }

void EvalSequence::archive_and_restore() {
  const KVCacheManager& kv = *store_->kv;
  const KVCacheSpec& spec = kv.spec();
  KAREZ_CHECK(num_tokens() % kBlockSize == 0, "whole blocks are archived");
  std::vector<std::byte> page(ArchiveLayout::of(spec.head_dim).page_bytes);
  for (int layer = 0; layer < spec.num_layers; ++layer) {
    const KVLayerView view = kv.layer(layer);
    for (const BlockId block : kv.table(id_, kv.group_of_layer(layer))) {
      for (int head = 0; !block.is_none() && head < spec.num_kv_heads; ++head) {
        archive_block(spec.type, spec.head_dim, view.slot(head, block), page.data());
        restore_block(spec.type, spec.head_dim, page.data(), view.slot(head, block));
      }
    }
  }
}

Expected<std::span<const float>> EvalSequence::append(ModelRunner& runner,
                                                      std::span<const TokenId> tokens,
                                                      int first_sparse_position, bool wants_logits,
                                                      QueryRing* queries) {
  KVCacheManager& kv = *store_->kv;
  SequenceRows rows;
  rows.first_position = kv.num_tokens(id_);
  rows.num_rows = static_cast<int>(tokens.size());
  rows.first_sparse_position = first_sparse_position;
  rows.queries = queries;
  if (!kv.extend(id_, rows.num_rows)) {
    return fail(StatusCode::kInternal, "the KV store of the evaluation is too small");
  }
  set_tables(rows, kv, id_);
  ForwardBatch batch;
  batch.tokens.assign(tokens.begin(), tokens.end());
  batch.sequences.push_back(std::move(rows));
  if (store_->index) {
    batch.key_index = &*store_->index;
  }
  for (int row = 0; wants_logits && row < static_cast<int>(tokens.size()); ++row) {
    batch.output_rows.push_back(row);
  }
  return runner.forward(batch, kv);
}

int rows_with_logits(int vocab_size) {
  constexpr std::int64_t kLogitBytes = 16 << 20;
  constexpr std::int64_t kMostRows = 64;
  return static_cast<int>(
      std::clamp<std::int64_t>(kLogitBytes / (std::int64_t{vocab_size} * 4), 1, kMostRows));
}

}  // namespace karez
