#include "attention/query_recorder.h"

#include <algorithm>
#include <cstddef>

namespace karez {

void QueryRecorder::plan(std::span<const SequenceRows> sequences) {
  rows_.clear();
  for (const SequenceRows& rows : sequences) {
    if (rows.queries == nullptr) {
      continue;
    }
    const int num_rows = rows.num_rows - rows.num_hint_rows;
    // Of positions that share a place in the ring the last one counts, whichever thread is first.
    for (int row = std::max(0, num_rows - rows.queries->capacity_tokens()); row < num_rows; ++row) {
      const int position = rows.first_position + row;
      if (QueryRing::keeps(position)) {
        rows_.push_back({rows.queries, position, rows.first_row + row});
      }
    }
  }
}

void QueryRecorder::run(int layer, RowsView queries, int thread, int num_threads) const {
  const std::size_t units = rows_.size() * static_cast<std::size_t>(num_kv_heads_);
  const auto border = [&](int i) {
    return units * static_cast<std::size_t>(i) / static_cast<std::size_t>(num_threads);
  };
  for (std::size_t unit = border(thread); unit < border(thread + 1); ++unit) {
    const Row& row = rows_[unit / static_cast<std::size_t>(num_kv_heads_)];
    const int head = static_cast<int>(unit % static_cast<std::size_t>(num_kv_heads_));
    row.ring->record(layer, head, row.position,
                     queries.data + static_cast<std::size_t>(row.row) * queries.row_stride +
                         static_cast<std::size_t>(head * group_ * head_dim_),
                     group_);
  }
}

}  // namespace karez
