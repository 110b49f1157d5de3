// A sequence with the content of another and blocks of its own (KVCacheManager::fork() shares
// them).
//
// Thread: the manager's owner thread, no step running.
#pragma once

#include <optional>

#include "kv/kv_cache_manager.h"

namespace karez {

// Extends the copy in steps of step_tokens, so that sliding windows release blocks on the way.
// None: too few free slots; nothing has changed.
std::optional<SequenceId> copy_sequence(KVCacheManager& kv, SequenceId source, int step_tokens);

}  // namespace karez
