#include "engine/sequence_copy.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "kv/residency.h"
#include "kv/window_blocks.h"

namespace karez {
namespace {

// Blocks [first, end) of the tables, all layers. What the source has at home only is brought up.
[[nodiscard]] bool copy_blocks(KVCacheManager& kv, SequenceId source, SequenceId copy,
                               std::size_t first, std::size_t end) {
  Residency* residency = kv.residency();
  bool is_whole = true;
  for (int layer = 0; layer < kv.spec().num_layers; ++layer) {
    const int group = kv.group_of_layer(layer);
    const BlockTableView from = kv.table(source, group);
    const BlockTableView to = kv.table(copy, group);
    const KVLayerView view = kv.layer(layer);
    // Calls visit(head, from, to). A block that either side has let go is outside every later
    // row's window.
    const auto each = [&](auto visit) {
      for (int head = 0; head < kv.spec().num_kv_heads; ++head) {
        for (std::size_t i = first; i < end; ++i) {
          if (!from[i].is_none() && !to[i].is_none()) {
            visit(head, from[i], to[i]);
          }
        }
      }
    };
    if (residency != nullptr) {
      residency->begin_layer(layer);
      each([&](int head, BlockId block, BlockId) { residency->need(head, block); });
      is_whole = residency->load().empty() && is_whole;
    }
    each([&](int head, BlockId block, BlockId other) {
      std::memcpy(view.slot(head, other), view.slot(head, block), view.slot_bytes());
    });
  }
  if (residency != nullptr) {
    residency->end_step();
  }
  return is_whole;
}

}  // namespace

std::optional<SequenceId> copy_sequence(KVCacheManager& kv, SequenceId source, int step_tokens,
                                        KeyIndex* key_index) {
  const SequenceId copy = kv.open();
  const int num_tokens = kv.num_tokens(source);
  for (int done = 0; done < num_tokens;) {
    const int step = std::min(num_tokens - done, step_tokens);
    if (!kv.extend(copy, step) ||
        !copy_blocks(kv, source, copy, static_cast<std::size_t>(done / kBlockSize),
                     static_cast<std::size_t>(num_blocks(done + step)))) {
      kv.close(copy);
      return std::nullopt;
    }
    done += step;
    kv.write_home(copy);
    if (kv.residency() != nullptr) {
      kv.residency()->advance();
    }
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
