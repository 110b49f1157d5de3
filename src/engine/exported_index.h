// The key index as it travels between nodes: for each block a record, and its coarse record,
// whether this node scans in two levels or not.
//
//   [record: key_index_block_bytes()] [coarse record: coarse_record_bytes()]
//
// Thread: the store's owner, no step running. Errors: none; shapes are the callers' to check.
#pragma once

#include <cstddef>

#include "attention/key_index.h"
#include "kv/kv_types.h"

namespace karez {

// Of one block of one layer and KV head.
std::size_t exported_index_bytes(KeyIndexKind kind, int head_dim);

// content: the block as it is stored; `out` takes exported_index_bytes(). is_full: all 16 tokens
// are there. Layers without an index: zeros.
void export_index(const KeyIndexView& index, int kv_head, BlockId block, const KVCacheSpec& spec,
                  const std::byte* content, bool is_full, std::byte* out);
void import_index(const KeyIndexView& index, int kv_head, BlockId block, int head_dim,
                  const std::byte* in);

}  // namespace karez
