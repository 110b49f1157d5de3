#include "engine/exported_index.h"

#include <cstring>

namespace karez {

std::size_t exported_index_bytes(KeyIndexKind kind, int head_dim) {
  return key_index_block_bytes(kind, head_dim) + coarse_record_bytes(head_dim);
}

void export_index(const KeyIndexView& index, int kv_head, BlockId block, const KVCacheSpec& spec,
                  const std::byte* content, bool is_full, std::byte* out) {
  if (index.is_none()) {
    return;
  }
  const std::size_t bytes = key_index_block_bytes(index.kind(), spec.head_dim);
  std::memcpy(out, index.record(kv_head, block), bytes);
  std::byte* coarse = out + bytes;
  if (index.has_coarse()) {
    std::memcpy(coarse, index.coarse_record(kv_head, block), coarse_record_bytes(spec.head_dim));
  } else if (is_full) {
    index_mean(spec.head_dim, coarse, spec.type, content, index.centre(kv_head, spec.head_dim));
  }
}

void import_index(const KeyIndexView& index, int kv_head, BlockId block, int head_dim,
                  const std::byte* in) {
  if (index.is_none()) {
    return;
  }
  const std::size_t bytes = key_index_block_bytes(index.kind(), head_dim);
  std::memcpy(index.record(kv_head, block), in, bytes);
  if (index.has_coarse()) {
    std::memcpy(index.coarse_record(kv_head, block), in + bytes, coarse_record_bytes(head_dim));
  }
}

}  // namespace karez
