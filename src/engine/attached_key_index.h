// A key index beside a KV store: a record for each of its blocks, copied when a block is copied on
// write.
//
// Thread: the store's owner thread, no step running.
// Owns: the index. The store must not be extended after the index is gone.
#pragma once

#include <limits>
#include <memory>
#include <vector>

#include "attention/key_index.h"
#include "attention/sparse_rows.h"
#include "base/status.h"
#include "kv/kv_cache_manager.h"
#include "model/model_runner.h"
#include "model/tokenizer.h"

namespace karez {

// Null if sparse attention is off. centres: as KeyIndex::create() takes them. context_tokens: the
// most of a sequence; where that is too few for two levels there are no coarse records, however
// large the store.
// Fails: as KeyIndex::create().
Expected<std::unique_ptr<KeyIndex>> attach_key_index(
    KVCacheManager& kv, const SparseOptions& sparse, std::vector<float> centres = {},
    int context_tokens = std::numeric_limits<int>::max());

// The same with the model's own centres (key_centres.h), which the runner is asked for: it computes
// some steps of up to step_tokens rows, in a store of its own.
// Requires: runner and tokenizer are of one model, the runner's KV type is that of kv.
// Fails: as built_in_key_centres() and KeyIndex::create().
Expected<std::unique_ptr<KeyIndex>> attach_key_index(KVCacheManager& kv,
                                                     const SparseOptions& sparse,
                                                     ModelRunner& runner,
                                                     const Tokenizer& tokenizer, int step_tokens,
                                                     int context_tokens);

}  // namespace karez
