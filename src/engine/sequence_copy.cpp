#include "engine/sequence_copy.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace karez {
namespace {

void copy_layer(const KVCacheManager& kv, int layer, BlockTableView from, BlockTableView to) {
  const KVLayerView view = kv.layer(layer);
  for (int head = 0; head < kv.spec().num_kv_heads; ++head) {
    for (std::size_t i = 0; i < from.size(); ++i) {
      // A block that either side has let go is outside every later row's window.
      if (!from[i].is_none() && !to[i].is_none()) {
        std::memcpy(view.slot(head, to[i]), view.slot(head, from[i]), view.slot_bytes());
      }
    }
  }
}

}  // namespace

std::optional<SequenceId> copy_sequence(KVCacheManager& kv, SequenceId source, int step_tokens,
                                        KeyIndex* key_index) {
  const SequenceId copy = kv.open();
  int rest = kv.num_tokens(source);
  while (rest > 0) {
    const int step = std::min(rest, step_tokens);
    if (!kv.extend(copy, step)) {
      kv.close(copy);
      return std::nullopt;
    }
    rest -= step;
  }
  for (int layer = 0; layer < kv.spec().num_layers; ++layer) {
    const int group = kv.group_of_layer(layer);
    copy_layer(kv, layer, kv.table(source, group), kv.table(copy, group));
  }
  for (std::size_t group = 0; key_index != nullptr && group < kv.layer_groups().size(); ++group) {
    const BlockTableView from = kv.table(source, static_cast<int>(group));
    const BlockTableView to = kv.table(copy, static_cast<int>(group));
    for (std::size_t i = 0; i < from.size(); ++i) {
      if (!from[i].is_none() && !to[i].is_none()) {
        key_index->copy_block(from[i], to[i]);
      }
    }
  }
  return copy;
}

}  // namespace karez
