#include "engine/attached_key_index.h"

#include <limits>
#include <utility>
#include <vector>

#include "attention/archive_page.h"
#include "engine/key_centres.h"

namespace karez {
namespace {

// Rows of drafts and probes may lie behind the context.
constexpr int kBlocksBehindContext = 64;

// Of so many blocks coarse records are made.
int coarse_from(const SparseOptions& sparse, int context_tokens) {
  if (sparse.rank_ahead) {
    return 0;
  }
  const bool is_in_reach =
      context_tokens / kBlockSize + kBlocksBehindContext > sparse.two_level_blocks;
  return is_in_reach ? sparse.two_level_blocks : std::numeric_limits<int>::max();
}

}  // namespace

Expected<std::unique_ptr<KeyIndex>> attach_key_index(KVCacheManager& kv,
                                                     const SparseOptions& sparse,
                                                     std::vector<float> centres,
                                                     int context_tokens) {
  if (!sparse.is_on()) {
    return nullptr;
  }
  auto index = KeyIndex::create(kv.spec(), sparse.block_index, block_id_ranges(kv),
                                std::move(centres), coarse_from(sparse, context_tokens),
                                pages_per_block(kv.spec().type, kv.spec().head_dim));
  if (!index) {
    return fail(std::move(index.error()));
  }
  auto owned = std::make_unique<KeyIndex>(std::move(*index));
  kv.on_copy([raw = owned.get()](BlockId from, BlockId to) { raw->copy_block(from, to); });
  return owned;
}

Expected<std::unique_ptr<KeyIndex>> attach_key_index(KVCacheManager& kv,
                                                     const SparseOptions& sparse,
                                                     ModelRunner& runner,
                                                     const Tokenizer& tokenizer, int step_tokens,
                                                     int context_tokens) {
  auto centres = built_in_key_centres(runner, tokenizer, kv.spec().type, sparse, step_tokens);
  if (!centres) {
    return fail(std::move(centres.error()));
  }
  return attach_key_index(kv, sparse, std::move(*centres), context_tokens);
}

}  // namespace karez
