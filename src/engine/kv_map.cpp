#include "engine/kv_map.h"

#include "kv/residency.h"
#include "kv/window_blocks.h"

namespace karez {

KvMap make_kv_map(const KVCacheManager& kv, RequestId request, SequenceId sequence) {
  KvMap map;
  map.request = request;
  map.num_tokens = kv.num_tokens(sequence);
  map.num_layers = kv.spec().num_layers;
  map.num_blocks = static_cast<int>(num_blocks(map.num_tokens));
  map.compressed = kv.compressed_part(sequence);
  const Residency* residency = kv.residency();
  for (int layer = 0; layer < map.num_layers; ++layer) {
    const KVLayerView view = kv.layer(layer);
    const std::size_t end = map.cells.size() + static_cast<std::size_t>(map.num_blocks);
    for (const BlockId block : kv.table(sequence, kv.group_of_layer(layer))) {
      int num_fast = 0;
      bool was_read = false;
      for (int head = 0; head < kv.spec().num_kv_heads && !block.is_none(); ++head) {
        num_fast += view.slots_of_head(head)[block.value].is_none() ? 0 : 1;
        was_read = was_read || (residency != nullptr && residency->was_read(layer, head, block));
      }
      const KvMap::Where where = block.is_none()                      ? KvMap::kNowhere
                                 : num_fast == kv.spec().num_kv_heads ? KvMap::kFast
                                 : num_fast > 0                       ? KvMap::kPartly
                                                                      : KvMap::kHome;
      map.cells.push_back(static_cast<std::uint8_t>(where + (was_read ? KvMap::kWasRead : 0)));
    }
    map.cells.resize(end, KvMap::kNowhere);  // where it is compressed
  }
  return map;
}

}  // namespace karez
