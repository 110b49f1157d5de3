// What the rows of one job attend to, chunk by chunk: the blocks of a table, those of a sparse
// row's list side by side as if they were the context, and archived pages.
//
// Chunks are numbered as in the plan: first those of blocks, then those of pages. Pages are left
// out of the first ones, so that blocks behind them move up; they have chunks of their own, which
// all rows see whole. Thread: a value, made and used by one thread. Borrows tables, lists and
// views.
#pragma once

#include <cstdint>
#include <span>

#include "attention/archive_page.h"
#include "attention/kernel_table.h"
#include "attention/sequence_rows.h"
#include "attention/work_plan.h"
#include "kv/block_layout.h"
#include "kv/block_table.h"

namespace karez {

class JobBlocks {
 public:
  // Of a job whose rows attend to everything.
  JobBlocks(const TileJob& job, const SequenceRows& rows, BlockTableView table, int window);
  // Of a sparse row's job. list: ascending entries, the last one its own block.
  JobBlocks(const TileJob& job, const SequenceRows& rows, BlockTableView table,
            const SparseRow& sparse_row, std::span<const std::int32_t> list);

  // The first chunk from that number on that there is; job.end() if there is none. A list is known
  // only once it is made, and may have been shortened: it may have fewer than were planned.
  int next(int chunk) const;
  bool is_archived(int chunk) const { return chunk >= planned_end_; }

  // Blocks of a chunk that any row sees. Requires: next(chunk) == chunk.
  void find(const BlockLayout& layout, int head_dim, const KVLayerView& view, int chunk,
            ChunkBlocks& out) const;

  // Of the job's first row, where chunks of blocks are concerned; chunks of pages end at
  // num_pages().
  int first_position() const { return first_position_; }
  int num_pages() const;

 private:
  int block_chunks_end() const;
  int page_chunks() const { return (num_pages() + kChunkBlocks - 1) / kChunkBlocks; }
  // Entry of the table.
  int listed_block(int i) const;
  int dense_block(int i) const { return i < archived_.begin ? i : i + archived_.count(); }
  int page_entry(int i) const;
  void find_listed(const BlockLayout& layout, const KVLayerView& view, int chunk,
                   ChunkBlocks& out) const;
  void find_dense(const BlockLayout& layout, const KVLayerView& view, int chunk,
                  ChunkBlocks& out) const;
  void find_pages(int head_dim, const KVLayerView& view, int chunk, ChunkBlocks& out) const;
  void set_block(const BlockLayout& layout, const KVLayerView& view, int entry, int b,
                 ChunkBlocks& out) const;

  BlockTableView table_;
  ArchivedEntries archived_;
  int kv_head_;
  int num_rows_;
  int window_ = 0;
  int planned_end_;  // of the chunks of blocks
  int job_end_;
  bool is_listed_;
  std::span<const std::int32_t> list_;
  std::span<const std::int32_t> listed_pages_;
  int num_before_pages_ = 0;  // entries of the list
  int first_position_;
};

}  // namespace karez
