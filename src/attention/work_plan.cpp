#include "attention/work_plan.h"

#include <algorithm>

#include "attention/kernel_table.h"
#include "attention/paged_attention.h"

namespace karez {
namespace {

// A sequence with at least this many jobs for each thread keeps them busy without splitting.
constexpr int kJobsPerThread = 4;

void add_items(GroupPlan& plan, int job_index) {
  TileJob& job = plan.jobs[static_cast<std::size_t>(job_index)];
  if (job.split_index < 0) {
    plan.items.push_back({job_index, -1});
    return;
  }
  for (int chunk = job.chunk_begin; chunk < job.chunk_end; ++chunk) {
    plan.items.push_back({job_index, chunk});
  }
}

std::int64_t item_cost(const GroupPlan& plan, const WorkItem& item) {
  const TileJob& job = plan.jobs[static_cast<std::size_t>(item.job)];
  const std::int64_t chunks = item.chunk < 0 ? job.chunk_end - job.chunk_begin : 1;
  return chunks * job.num_rows;
}

}  // namespace

int tile_rows(int group) { return std::max(1, kTileVectors / group); }

GroupPlan make_group_plan(std::span<const SequenceRows> sequences, int window,
                          const TileShape& shape) {
  GroupPlan plan;
  plan.window = window;
  const int rows_of_tile = tile_rows(shape.group);
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    const SequenceRows& rows = sequences[s];
    const int tiles = (rows.num_rows + rows_of_tile - 1) / rows_of_tile;
    const bool few_jobs = tiles * shape.num_kv_heads < kJobsPerThread * shape.max_threads;
    const int end = rows.first_position + rows.num_rows;
    const int first_block = first_visible(rows.first_position, window) / kBlockSize;
    plan.blocks_read +=
        static_cast<std::int64_t>((end + kBlockSize - 1) / kBlockSize - first_block) *
        shape.num_kv_heads;
    for (int head = 0; head < shape.num_kv_heads; ++head) {
      // The last tile sees most keys.
      for (int tile = tiles - 1; tile >= 0; --tile) {
        TileJob job{};
        job.sequence = static_cast<int>(s);
        job.kv_head = head;
        job.first_row = tile * rows_of_tile;
        job.num_rows = std::min(rows_of_tile, rows.num_rows - job.first_row);
        const int first = rows.first_position + job.first_row;
        job.chunk_begin = first_visible(first, window) / kChunkTokens;
        job.chunk_end = (first + job.num_rows - 1) / kChunkTokens + 1;
        job.split_index = -1;
        const int num_chunks = job.chunk_end - job.chunk_begin;
        if (few_jobs && num_chunks > 1) {
          job.split_index = plan.num_split_jobs++;
          job.first_split_chunk = plan.num_split_chunks;
          plan.num_split_chunks += num_chunks;
        }
        plan.jobs.push_back(job);
        add_items(plan, static_cast<int>(plan.jobs.size()) - 1);
      }
    }
  }
  std::stable_sort(plan.items.begin(), plan.items.end(),
                   [&plan](const WorkItem& a, const WorkItem& b) {
                     return item_cost(plan, a) > item_cost(plan, b);
                   });
  return plan;
}

}  // namespace karez
