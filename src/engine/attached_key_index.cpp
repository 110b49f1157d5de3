#include "engine/attached_key_index.h"

#include <utility>

namespace karez {

Expected<std::unique_ptr<KeyIndex>> attach_key_index(KVCacheManager& kv,
                                                     const SparseOptions& sparse) {
  if (!sparse.is_on()) {
    return nullptr;
  }
  auto index = KeyIndex::create(kv.spec(), sparse.block_index,
                                block_id_ranges(kv.spec(), kv.stats().slots_total));
  if (!index) {
    return fail(std::move(index.error()));
  }
  auto owned = std::make_unique<KeyIndex>(std::move(*index));
  kv.on_copy([raw = owned.get()](BlockId from, BlockId to) { raw->copy_block(from, to); });
  return owned;
}

}  // namespace karez
