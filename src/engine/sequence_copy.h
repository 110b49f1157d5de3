// A sequence with the content of another and blocks of its own (KVCacheManager::fork() shares
// them).
//
// Thread: the manager's owner thread, no step running.
#pragma once

#include <optional>

#include "attention/key_index.h"
#include "kv/kv_cache_manager.h"

namespace karez {

// Extends the copy in steps of step_tokens, so that sliding windows release blocks on the way.
// key_index: of kv's blocks, copied with them; null: there is none.
// None: too few free slots; nothing has changed.
std::optional<SequenceId> copy_sequence(KVCacheManager& kv, SequenceId source, int step_tokens,
                                        KeyIndex* key_index = nullptr);

}  // namespace karez
