#include "engine/attached_key_index.h"

#include <utility>
#include <vector>

namespace karez {

Expected<std::unique_ptr<KeyIndex>> attach_key_index(KVCacheManager& kv,
                                                     const SparseOptions& sparse) {
  if (!sparse.is_on()) {
    return nullptr;
  }
  std::vector<BlockIdRange> ranges;
  for (int group = 0; group < static_cast<int>(kv.layer_groups().size()); ++group) {
    ranges.push_back({kv.first_block_id(group), kv.num_block_ids(group)});
  }
  auto index = KeyIndex::create(kv.spec(), sparse.block_index, ranges);
  if (!index) {
    return fail(std::move(index.error()));
  }
  auto owned = std::make_unique<KeyIndex>(std::move(*index));
  kv.on_copy([raw = owned.get()](BlockId from, BlockId to) { raw->copy_block(from, to); });
  return owned;
}

}  // namespace karez
