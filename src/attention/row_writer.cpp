#include "attention/row_writer.h"

#include <algorithm>

#include "attention/attention_scratch.h"
#include "base/check.h"

namespace karez {
namespace {

void fetch_record(const std::byte* record, std::size_t bytes) {
  for (std::size_t line = 0; line < bytes; line += kCacheLineBytes) {
    __builtin_prefetch(record + line, 1);
  }
}

}  // namespace

void RowWriter::plan(std::span<const SequenceRows> sequences) {
  sequences_ = sequences;
  runs_.clear();
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    const SequenceRows& rows = sequences[s];
    int row = 0;
    while (row < rows.num_rows) {
      const int position = rows.first_position + row;
      const int first_token = position % kBlockSize;
      const int num_tokens = std::min(kBlockSize - first_token, rows.num_rows - row);
      runs_.push_back({static_cast<int>(s), position / kBlockSize, first_token, num_tokens,
                       rows.first_row + row});
      row += num_tokens;
    }
  }
}

void RowWriter::run(std::size_t table_group, const KVLayerView& layer_view,
                    const KeyIndexView& index, RowsView keys, RowsView values, int thread,
                    int num_threads) const {
  const std::size_t units = runs_.size() * static_cast<std::size_t>(num_kv_heads_);
  const auto border = [&](int i) {
    return units * static_cast<std::size_t>(i) / static_cast<std::size_t>(num_threads);
  };
  for (std::size_t unit = border(thread); unit < border(thread + 1); ++unit) {
    const Run& run = runs_[unit / static_cast<std::size_t>(num_kv_heads_)];
    const int head = static_cast<int>(unit % static_cast<std::size_t>(num_kv_heads_));
    const SequenceRows& sequence = sequences_[static_cast<std::size_t>(run.sequence)];
    const int place = sequence.place_of(run.block * kBlockSize, groups_[table_group].window);
    const BlockId block =
        sequence.tables[table_group][static_cast<std::size_t>(place / kBlockSize)];
    KAREZ_DCHECK(!block.is_none(), "a row to be stored has no block");
    const auto rows_of = [&](RowsView view) {
      return TokenRows{view.data + static_cast<std::size_t>(run.row) * view.row_stride +
                           static_cast<std::size_t>(head * head_dim_),
                       view.row_stride};
    };
    if (!index.is_none()) {
      // Few bytes of each of its lines are written: their way here takes longer than the writing.
      fetch_record(index.record(head, block), key_index_block_bytes(index.kind(), head_dim_));
    }
    store_in_block(type_, head_dim_, layer_view.slot(head, block), run.first_token, run.num_tokens,
                   rows_of(keys), rows_of(values));
    if (!index.is_none()) {
      write_index(index, run, head, block, layer_view.slot(head, block));
    }
  }
}

void RowWriter::write_index(const KeyIndexView& index, const Run& run, int head, BlockId block,
                            const std::byte* slot) const {
  std::byte* record = index.record(head, block);
  const bool completes = run.first_token + run.num_tokens == kBlockSize;
  if (codes_tokens(index.kind())) {
    const float* centre = index.centre(head, head_dim_);
    index_stored_tokens(index.kind(), head_dim_, record, run.first_token, run.num_tokens, type_,
                        slot, centre);
    if (index.has_coarse() && completes) {
      index_mean(head_dim_, index.coarse_record(head, block), type_, slot, centre);
    }
  } else if (completes) {
    index_block(index.kind(), head_dim_, record, type_, slot);
  }
}

}  // namespace karez
