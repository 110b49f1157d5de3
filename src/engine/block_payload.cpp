#include "engine/block_payload.h"

#include <cstring>

#include "base/check.h"
#include "kv/residency.h"

namespace karez {
namespace {

// Calls visit(layer, head, block, slot) in the order of the payload.
template <class Visit>
void for_each_slot(const KVCacheManager& kv, SequenceId sequence, std::size_t index,
                   const Visit& visit) {
  for (int layer = 0; layer < kv.spec().num_layers; ++layer) {
    const BlockId block = kv.table(sequence, kv.group_of_layer(layer))[index];
    const KVLayerView view = kv.layer(layer);
    for (int head = 0; head < kv.spec().num_kv_heads; ++head) {
      visit(layer, head, block, view.slot(head, block));
    }
  }
}

}  // namespace

std::size_t payload_bytes_of(const KVCacheSpec& spec) {
  return static_cast<std::size_t>(spec.num_layers) * static_cast<std::size_t>(spec.num_kv_heads) *
         spec.slot_bytes();
}

bool has_payload(const KVCacheManager& kv, SequenceId sequence, std::size_t index) {
  for (int layer = 0; layer < kv.spec().num_layers; ++layer) {
    const BlockTableView table = kv.table(sequence, kv.group_of_layer(layer));
    if (index >= table.size() || table[index].is_none()) {
      return false;
    }
    const BlockId block = table[index];
    if (kv.residency() != nullptr && kv.residency()->is_lost(block)) {
      return false;
    }
    const KVLayerView view = kv.layer(layer);
    for (int head = 0; head < kv.spec().num_kv_heads; ++head) {
      if (view.slots_of_head(head)[block.value].is_none()) {
        return false;
      }
    }
  }
  return true;
}

void copy_payload_out(const KVCacheManager& kv, SequenceId sequence, std::size_t index,
                      std::span<std::byte> payload) {
  KAREZ_CHECK(payload.size() == payload_bytes_of(kv.spec()), "a payload has one size");
  const std::size_t slot_bytes = kv.spec().slot_bytes();
  std::byte* to = payload.data();
  for_each_slot(kv, sequence, index, [&](int, int, BlockId, const std::byte* slot) {
    std::memcpy(to, slot, slot_bytes);
    to += slot_bytes;
  });
}

void copy_payload_in(KVCacheManager& kv, SequenceId sequence, std::size_t index,
                     std::span<const std::byte> payload, const KeyIndex* key_index) {
  KAREZ_CHECK(payload.size() == payload_bytes_of(kv.spec()), "a payload has one size");
  const KVCacheSpec& spec = kv.spec();
  const std::byte* from = payload.data();
  for_each_slot(kv, sequence, index, [&](int layer, int head, BlockId block, std::byte* slot) {
    std::memcpy(slot, from, spec.slot_bytes());
    from += spec.slot_bytes();
    if (key_index != nullptr) {
      const KeyIndexView view = key_index->view(layer);
      if (!view.is_none()) {
        index_stored_block(view, head, block, spec.head_dim, spec.type, slot);
      }
    }
  });
}

}  // namespace karez
