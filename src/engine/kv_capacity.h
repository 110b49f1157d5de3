// What fits into a KV cap: arithmetic on a KVCacheSpec, without allocating anything.
//
// The same rules as KVCacheManager: whole slots, whole blocks, sliding windows applied as a
// sequence grows in steps of step_tokens. Thread: no state.
#pragma once

#include <cstdint>

#include "kv/kv_cache_spec.h"

namespace karez {

// Slots of a pool with this cap, as BlockPool::create() counts them.
std::int64_t slots_in_cap(const KVCacheSpec& spec, std::int64_t cap_bytes);

// The most tokens up to max_tokens that one sequence can have; 0 if not even one fits.
std::int64_t longest_sequence_tokens(const KVCacheSpec& spec, std::int64_t cap_bytes,
                                     std::int64_t max_tokens, std::int64_t step_tokens);

// How many sequences of context_tokens > 0, that share nothing, fit at the same time.
std::int64_t sequences_in_cap(const KVCacheSpec& spec, std::int64_t cap_bytes,
                              std::int64_t context_tokens, std::int64_t step_tokens);

// The smallest cap that holds a sequence of num_tokens; saturates at the largest number.
std::int64_t bytes_for_sequence(const KVCacheSpec& spec, std::int64_t num_tokens,
                                std::int64_t step_tokens);

}  // namespace karez
