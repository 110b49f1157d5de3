// The bytes of one logical block of all layers and heads, as a stored record has them:
// [layer][kv_head][block bytes].
//
// Thread: the KV store's owner thread, no step running.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "attention/key_index.h"
#include "kv/kv_cache_manager.h"

namespace karez {

std::size_t payload_bytes_of(const KVCacheSpec& spec);

// Whether block `index` of the sequence is in the fast tier in all layers and heads.
bool has_payload(const KVCacheManager& kv, SequenceId sequence, std::size_t index);

// Requires: has_payload(), payload.size() == payload_bytes_of().
void copy_payload_out(const KVCacheManager& kv, SequenceId sequence, std::size_t index,
                      std::span<std::byte> payload);
// Into a block that extend() has just made; its index records are those that store() made.
// key_index: of kv's blocks; null: there is none.
void copy_payload_in(KVCacheManager& kv, SequenceId sequence, std::size_t index,
                     std::span<const std::byte> payload, const KeyIndex* key_index);

}  // namespace karez
