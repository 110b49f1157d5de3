#include "attention/work_plan.h"

#include <algorithm>

#include "attention/kernel_table.h"
#include "attention/paged_attention.h"

namespace karez {
namespace {

// A sequence with at least this many jobs for each thread keeps them busy without splitting.
constexpr int kJobsPerThread = 4;

int chunks_of(int num_blocks) { return (num_blocks + kChunkBlocks - 1) / kChunkBlocks; }

void add_items(GroupPlan& plan, int job_index) {
  TileJob& job = plan.jobs[static_cast<std::size_t>(job_index)];
  if (job.split_index < 0) {
    plan.items.push_back({job_index, -1});
    return;
  }
  for (int chunk = job.chunk_begin; chunk < job.end(); ++chunk) {
    plan.items.push_back({job_index, chunk});
  }
}

std::int64_t item_cost(const GroupPlan& plan, const WorkItem& item) {
  const TileJob& job = plan.jobs[static_cast<std::size_t>(item.job)];
  const std::int64_t chunks = item.chunk < 0 ? job.end() - job.chunk_begin : 1;
  return chunks * job.num_rows;
}

void add_job(GroupPlan& plan, TileJob job, bool few_jobs) {
  job.split_index = -1;
  const int num_chunks = job.end() - job.chunk_begin;
  if (few_jobs && num_chunks > 1) {
    job.split_index = plan.num_split_jobs++;
    job.first_split_chunk = plan.num_split_chunks;
    plan.num_split_chunks += num_chunks;
  }
  plan.jobs.push_back(job);
  add_items(plan, static_cast<int>(plan.jobs.size()) - 1);
}

// The first num_rows rows of the sequence, which attend to everything.
void add_dense_rows(GroupPlan& plan, int sequence, const SequenceRows& rows, int num_rows,
                    const TileShape& shape) {
  const int rows_of_tile = tile_rows(shape.group);
  const int tiles = (num_rows + rows_of_tile - 1) / rows_of_tile;
  const bool few_jobs = tiles * shape.num_kv_heads < kJobsPerThread * shape.max_threads;
  const int num_pages = plan.window == 0 ? rows.archived.count() : 0;
  const int first_place = rows.place_of(rows.first_position, plan.window) - num_pages * kBlockSize;
  const int end = first_place + num_rows;
  const int first_block = first_visible(first_place, plan.window) / kBlockSize;
  plan.blocks_read += static_cast<std::int64_t>((end + kBlockSize - 1) / kBlockSize - first_block) *
                      shape.num_kv_heads;
  plan.pages_read += std::int64_t{num_pages} * shape.num_kv_heads;
  for (int head = 0; head < shape.num_kv_heads; ++head) {
    // The last tile sees most keys.
    for (int tile = tiles - 1; tile >= 0; --tile) {
      TileJob job{};
      job.sequence = sequence;
      job.kv_head = head;
      job.sparse_row = -1;
      job.first_row = tile * rows_of_tile;
      job.num_rows = std::min(rows_of_tile, num_rows - job.first_row);
      const int first = first_place + job.first_row;
      job.chunk_begin = first_visible(first, plan.window) / kChunkTokens;
      job.chunk_end = (first + job.num_rows - 1) / kChunkTokens + 1;
      job.archived_chunks = chunks_of(num_pages);
      add_job(plan, job, few_jobs);
    }
  }
}

void add_sparse_rows(GroupPlan& plan, std::span<const SequenceRows> sequences,
                     std::span<const SparseRow> sparse_rows, const TileShape& shape) {
  const auto num_jobs = static_cast<int>(sparse_rows.size()) * shape.num_kv_heads;
  const bool few_jobs = num_jobs < kJobsPerThread * shape.max_threads;
  for (std::size_t i = 0; i < sparse_rows.size(); ++i) {
    const SparseRow& row = sparse_rows[i];
    const int num_blocks = row.shape.num_selected();
    const int num_pages = sequences[static_cast<std::size_t>(row.sequence)].archived.count();
    plan.blocks_read += static_cast<std::int64_t>(num_blocks) * shape.num_kv_heads;
    for (int head = 0; head < shape.num_kv_heads; ++head) {
      TileJob job{};
      job.sequence = row.sequence;
      job.kv_head = head;
      job.sparse_row = static_cast<int>(i);
      job.first_row = row.row;
      job.num_rows = 1;
      job.chunk_begin = 0;
      job.chunk_end = chunks_of(num_blocks);
      job.archived_chunks = chunks_of(std::min(num_blocks, num_pages));
      add_job(plan, job, few_jobs);
    }
  }
}

}  // namespace

int tile_rows(int group) { return std::max(1, kTileVectors / group); }

GroupPlan make_group_plan(std::span<const SequenceRows> sequences, int window,
                          const TileShape& shape, std::span<const SparseRow> sparse_rows) {
  GroupPlan plan;
  plan.window = window;
  std::size_t next_sparse = 0;
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    const int sequence = static_cast<int>(s);
    int num_dense = sequences[s].num_rows;
    while (next_sparse < sparse_rows.size() && sparse_rows[next_sparse].sequence == sequence) {
      num_dense = std::min(num_dense, sparse_rows[next_sparse].row);
      ++next_sparse;
    }
    if (num_dense > 0) {
      add_dense_rows(plan, sequence, sequences[s], num_dense, shape);
    }
  }
  add_sparse_rows(plan, sequences, sparse_rows, shape);
  std::stable_sort(plan.items.begin(), plan.items.end(),
                   [&plan](const WorkItem& a, const WorkItem& b) {
                     return item_cost(plan, a) > item_cost(plan, b);
                   });
  return plan;
}

}  // namespace karez
