#include "attention/job_blocks.h"

#include <algorithm>
#include <cstddef>

#include "attention/paged_attention.h"
#include "attention/sparse_rows.h"
#include "base/check.h"

namespace karez {

JobBlocks::JobBlocks(const TileJob& job, const SequenceRows& rows, BlockTableView table, int window)
    : table_(table),
      archived_(window == 0 ? rows.archived : ArchivedEntries{}),
      kv_head_(job.kv_head),
      num_rows_(job.num_rows),
      window_(window),
      planned_end_(job.chunk_end),
      job_end_(job.end()),
      is_listed_(false),
      first_position_(rows.place_of(rows.first_position + job.first_row, window) -
                      archived_.count() * kBlockSize) {}

JobBlocks::JobBlocks(const TileJob& job, const SequenceRows& rows, BlockTableView table,
                     const SparseRow& sparse_row, std::span<const std::int32_t> list)
    : table_(table),
      archived_(rows.archived),
      kv_head_(job.kv_head),
      num_rows_(1),
      planned_end_(job.chunk_end),
      job_end_(job.end()),
      is_listed_(true),
      list_(list),
      listed_pages_(archived_of(list, rows.archived)) {
  if (!listed_pages_.empty()) {
    num_before_pages_ = static_cast<int>(listed_pages_.data() - list_.data());
  }
  const auto num_blocks = static_cast<int>(list_.size() - listed_pages_.size());
  first_position_ = (num_blocks - 1) * kBlockSize + sparse_row.place % kBlockSize;
}

int JobBlocks::num_pages() const {
  return is_listed_ ? static_cast<int>(listed_pages_.size()) : archived_.count();
}

int JobBlocks::block_chunks_end() const {
  if (!is_listed_) {
    return planned_end_;
  }
  const auto num_blocks = static_cast<int>(list_.size() - listed_pages_.size());
  return (num_blocks + kChunkBlocks - 1) / kChunkBlocks;
}

int JobBlocks::next(int chunk) const {
  if (chunk < block_chunks_end()) {
    return chunk;
  }
  const int page_chunk = std::max(0, chunk - planned_end_);
  return page_chunk < page_chunks() ? planned_end_ + page_chunk : job_end_;
}

int JobBlocks::listed_block(int i) const {
  const int at = i < num_before_pages_ ? i : i + static_cast<int>(listed_pages_.size());
  return list_[static_cast<std::size_t>(at)];
}

int JobBlocks::page_entry(int i) const {
  return is_listed_ ? listed_pages_[static_cast<std::size_t>(i)] : archived_.begin + i;
}

void JobBlocks::set_block(const BlockLayout& layout, const KVLayerView& view, int entry, int b,
                          ChunkBlocks& out) const {
  const BlockId block = table_[static_cast<std::size_t>(entry)];
  KAREZ_DCHECK(!block.is_none(), "a visible block is not in the table");
  const std::byte* slot = view.slot(kv_head_, block);
  out.keys[b] = slot + layout.keys_offset;
  out.values[b] = slot + layout.values_offset;
  out.key_scales[b] = slot + layout.key_scales_offset;
  out.value_scales[b] = slot + layout.value_scales_offset;
}

void JobBlocks::find(const BlockLayout& layout, int head_dim, const KVLayerView& view, int chunk,
                     ChunkBlocks& out) const {
  if (is_archived(chunk)) {
    find_pages(head_dim, view, chunk, out);
  } else if (is_listed_) {
    find_listed(layout, view, chunk, out);
  } else {
    find_dense(layout, view, chunk, out);
  }
}

void JobBlocks::find_listed(const BlockLayout& layout, const KVLayerView& view, int chunk,
                            ChunkBlocks& out) const {
  const auto num_blocks = static_cast<int>(list_.size() - listed_pages_.size());
  const int first = chunk * kChunkBlocks;
  const int count = std::min(kChunkBlocks, num_blocks - first);
  const SlotId* slots = view.slots_of_head(kv_head_);
  for (int i = first + count; i < std::min(num_blocks, first + 2 * count); ++i) {
    __builtin_prefetch(slots + table_[static_cast<std::size_t>(listed_block(i))].value);
  }
  out.first_position = chunk * kChunkTokens;
  out.begin = 0;
  out.end = count;
  for (int i = 0; i < count; ++i) {
    set_block(layout, view, listed_block(first + i), i, out);
  }
}

void JobBlocks::find_dense(const BlockLayout& layout, const KVLayerView& view, int chunk,
                           ChunkBlocks& out) const {
  const int first = std::max(first_visible(first_position_, window_), chunk * kChunkTokens);
  const int end = std::min(first_position_ + num_rows_, (chunk + 1) * kChunkTokens);
  const int chunk_block = chunk * kChunkBlocks;
  out.first_position = chunk * kChunkTokens;
  out.begin = first / kBlockSize - chunk_block;
  out.end = (end + kBlockSize - 1) / kBlockSize - chunk_block;
  const SlotId* slots = view.slots_of_head(kv_head_);
  // The slot numbers of the chunk after: looked up next time, when memory is busy.
  const auto table_end = static_cast<int>(table_.size()) - archived_.count();
  for (int b = 0; b < kChunkBlocks && chunk_block + kChunkBlocks + b < table_end; b += 4) {
    const BlockId block =
        table_[static_cast<std::size_t>(dense_block(chunk_block + kChunkBlocks + b))];
    if (!block.is_none()) {
      __builtin_prefetch(slots + block.value);
    }
  }
  for (int b = out.begin; b < out.end; ++b) {
    set_block(layout, view, dense_block(chunk_block + b), b, out);
  }
}

void JobBlocks::find_pages(int head_dim, const KVLayerView& view, int chunk,
                           ChunkBlocks& out) const {
  const ArchiveLayout layout = ArchiveLayout::of(head_dim);
  const int first = (chunk - planned_end_) * kChunkBlocks;
  out.first_position = first * kBlockSize;
  out.begin = 0;
  out.end = std::min(kChunkBlocks, num_pages() - first);
  for (int b = 0; b < out.end; ++b) {
    const int entry = page_entry(first + b);
    const BlockId block = table_[static_cast<std::size_t>(entry)];
    KAREZ_DCHECK(!block.is_none(), "an archived page is not in the table");
    const std::byte* page =
        view.slot(kv_head_, block) + archive_page_offset(head_dim, archived_.page_of(entry));
    out.keys[b] = page + layout.keys_offset;
    out.values[b] = page + layout.values_offset;
    out.key_scales[b] = page + layout.key_scales_offset;
    out.value_scales[b] = page + layout.value_scales_offset;
  }
}

}  // namespace karez
