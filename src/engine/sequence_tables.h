// Where attention finds what a sequence has: the part of SequenceRows that the KV store knows.
//
// Thread: the store's owner thread.
#pragma once

#include "attention/sequence_rows.h"
#include "kv/kv_cache_manager.h"

namespace karez {

// Views of the sequence's tables, valid until its next change.
void set_tables(SequenceRows& rows, const KVCacheManager& kv, SequenceId sequence);

}  // namespace karez
