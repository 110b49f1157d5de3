#include "engine/exported_index.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <cstring>

namespace karez {

std::size_t exported_index_bytes(KeyIndexKind kind, int head_dim) {
  return key_index_block_bytes(kind, head_dim) + coarse_record_bytes(head_dim);
}

std::string exported_index_name(const KeyIndex& index, const KVCacheSpec& spec) {
  std::uint64_t digest = 0;
  const auto values = static_cast<std::size_t>(spec.num_kv_heads * spec.head_dim);
  for (int layer = 0; layer < spec.num_layers; ++layer) {
    if (const float* centres = index.view(layer).centres(); centres != nullptr) {
      digest = XXH3_64bits_withSeed(centres, values * sizeof(float), digest + 1);
    }
  }
  return fmt::format("{}-{:08x}", to_string(index.kind()), digest & 0xFFFF'FFFFU);
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
