// Blocks that stay when nobody uses them, and sequences that begin with such blocks.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kv/kv_cache_manager.h"
#include "kv/kv_cache_manager_impl.h"
#include "kv/window_blocks.h"

namespace karez {

void KVCacheManager::cache(BlockId block) { impl_->blocks.cache(block); }

void KVCacheManager::uncache(BlockId block) { impl_->blocks.uncache(block); }

bool KVCacheManager::is_cached(BlockId block) const { return impl_->blocks.is_cached(block); }

void KVCacheManager::on_copy(std::function<void(BlockId from, BlockId to)> callback) {
  impl_->on_copy = std::move(callback);
}

void KVCacheManager::on_evict(std::function<void(BlockId)> callback) {
  impl_->blocks.on_evict(std::move(callback));
}

std::int64_t KVCacheManager::slots_available() const {
  // extend() waits for prefetches and writes if it needs their slots.
  return impl_->blocks.num_available_slots() + impl_->blocks.num_idle_busy_slots() +
         (impl_->residency == nullptr ? 0 : impl_->residency->num_fetching_slots());
}

SequenceId KVCacheManager::open_cached(int num_tokens, std::vector<std::vector<BlockId>> tables) {
  KAREZ_CHECK(num_tokens > 0 && num_tokens % kBlockSize == 0, "cached blocks are full");
  KAREZ_CHECK(tables.size() == layer_groups().size(), "a table for each layer group");
  const std::int64_t size = num_blocks(num_tokens);
  CachedSequence sequence{num_tokens, {}};
  for (std::size_t g = 0; g < tables.size(); ++g) {
    std::vector<BlockId>& table = tables[g];
    KAREZ_CHECK(static_cast<std::int64_t>(table.size()) == size, "tables of num_tokens");
    const std::int64_t first =
        std::min(size, first_kept_block(num_tokens, layer_groups()[g].window));
    std::fill(table.begin(), table.begin() + first, BlockId::none());
    for (std::int64_t i = first; i < size; ++i) {
      impl_->blocks.reuse(table[static_cast<std::size_t>(i)]);
    }
    CachedTable& cached = sequence.tables.emplace_back();
    cached.blocks = std::move(table);
    cached.num_released = first;
    cached.num_sent = size;
  }
  return impl_->add(std::move(sequence));
}

}  // namespace karez
