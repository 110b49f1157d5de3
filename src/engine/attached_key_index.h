// A key index beside a KV store: a record for each of its blocks, copied when a block is copied on
// write.
//
// Thread: the store's owner thread, no step running.
// Owns: the index. The store must not be extended after the index is gone.
#pragma once

#include <memory>

#include "attention/key_index.h"
#include "attention/sparse_rows.h"
#include "base/status.h"
#include "kv/kv_cache_manager.h"

namespace karez {

// Null if sparse attention is off.
// Fails: as KeyIndex::create().
Expected<std::unique_ptr<KeyIndex>> attach_key_index(KVCacheManager& kv,
                                                     const SparseOptions& sparse);

}  // namespace karez
