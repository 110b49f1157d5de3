#include "kv/block_pin.h"

#include "kv/kv_cache_manager.h"

namespace karez {

void BlockPin::release() {
  if (KVCacheManager* manager = std::exchange(manager_, nullptr)) {
    manager->unpin(blocks_);
  }
  blocks_.clear();
}

}  // namespace karez
