// What a sequence keeps below the fast tier.
#include <algorithm>

#include "kv/kv_cache_manager.h"
#include "kv/kv_cache_manager_impl.h"
#include "kv/window_blocks.h"

namespace karez {

Residency* KVCacheManager::residency() { return impl_->residency.get(); }

const Residency* KVCacheManager::residency() const { return impl_->residency.get(); }

void KVCacheManager::Impl::send_home(CachedTable& table, std::int64_t end) {
  std::int64_t i = std::max(table.num_sent, table.num_released);
  for (; i < end; ++i) {
    residency->write_home(table.blocks[static_cast<std::size_t>(i)]);
  }
  table.num_sent = std::max(table.num_sent, i);
}

void KVCacheManager::write_home(SequenceId sequence) {
  if (impl_->residency == nullptr) {
    return;
  }
  CachedSequence& source = impl_->find(sequence);
  for (CachedTable& table : source.tables) {
    impl_->send_home(table, table.num_full_entries(source.num_tokens));
  }
}

void KVCacheManager::demote(SequenceId sequence) {
  write_home(sequence);
  if (impl_->residency == nullptr) {
    return;
  }
  CachedSequence& source = impl_->find(sequence);
  if (source.num_tokens % kBlockSize != 0) {
    for (CachedTable& table : source.tables) {
      impl_->residency->write_home(table.blocks.back());
    }
  }
  impl_->residency->advance();
}

}  // namespace karez
