// How a step is cut into work items: the arithmetic of PagedAttention::plan().
//
// A *job* is one query tile of one (sequence, KV head). A job with few rows and a long context is
// *split*: each chunk of keys is an item of its own, and whoever finishes the last one merges them.
// Otherwise one item visits all chunks. Both ways do the same arithmetic in the same order.
// A sparse row is a job of its own for each KV head; its chunks are those of its list of blocks.
// Archived pages have chunks of their own, behind the others (job_blocks.h). How many of a sparse
// row's blocks are pages is not known yet: chunks are planned for both, and some stay empty.
// Thread: a value, built by one thread, read by all.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/sequence_rows.h"
#include "attention/sparse_rows.h"
#include "kv/kv_cache_spec.h"

namespace karez {

struct TileJob {
  int sequence;
  int kv_head;
  int first_row;  // within the sequence's rows
  int num_rows;
  int sparse_row;   // index among the step's sparse rows; -1: the rows attend to everything
  int chunk_begin;  // chunks that any of its rows sees
  int chunk_end;
  int archived_chunks;    // of pages, all seen by all rows: they count on from chunk_end
  int split_index;        // among the split jobs; -1: not split
  int first_split_chunk;  // of its partials among all partials of the plan

  int end() const { return chunk_end + archived_chunks; }
};

struct WorkItem {
  int job;
  int chunk;  // -1: all chunks of the job
};

// The step as layers of one window see it.
struct GroupPlan {
  int window = 0;
  std::vector<TileJob> jobs;
  std::vector<WorkItem> items;  // biggest first
  int num_split_jobs = 0;
  int num_split_chunks = 0;
  std::int64_t blocks_read = 0;  // (sequence, KV head, block) triples
  std::int64_t pages_read = 0;   // the same of archived pages; those of lists count as blocks
};

struct TileShape {
  int group = 1;  // query heads per KV head
  int num_kv_heads = 1;
  int max_threads = 1;
};

// First position that the row at `position` sees.
inline int first_visible(int position, int window) {
  return window > 0 && position >= window ? position - window + 1 : 0;
}

// Rows that a tile holds.
int tile_rows(int group);

// sparse_rows: as find_sparse_rows() gave them; empty for a layer that is dense.
GroupPlan make_group_plan(std::span<const SequenceRows> sequences, int window,
                          const TileShape& shape, std::span<const SparseRow> sparse_rows = {});

}  // namespace karez
