#include "attention/work_plan.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "attention/kernel_table.h"
#include "attention/paged_attention.h"

namespace karez {
namespace {

SequenceRows rows(int first_position, int num_rows) {
  SequenceRows out;
  out.first_position = first_position;
  out.num_rows = num_rows;
  return out;
}

TEST(WorkPlan, ATileHoldsWholeRowsUpToTheKernelsLimit) {
  EXPECT_EQ(tile_rows(1), kTileVectors);
  EXPECT_EQ(tile_rows(3), kTileVectors / 3);
  EXPECT_EQ(tile_rows(kTileVectors), 1);
}

TEST(WorkPlan, ADeepDecodeRowIsSplitByChunks) {
  const std::vector<SequenceRows> sequences = {rows(1000, 1)};
  const GroupPlan plan = make_group_plan(sequences, 0, {3, 2, 2});
  ASSERT_EQ(plan.jobs.size(), 2U);
  EXPECT_EQ(plan.items.size(), 8U);
  EXPECT_EQ(plan.num_split_jobs, 2);
  EXPECT_EQ(plan.num_split_chunks, 8);
  EXPECT_EQ(plan.blocks_read, 2 * 63);
}

TEST(WorkPlan, ALongPromptChunkIsNotSplit) {
  const std::vector<SequenceRows> sequences = {rows(1000, 512)};
  const GroupPlan plan = make_group_plan(sequences, 0, {3, 3, 2});
  EXPECT_EQ(plan.num_split_jobs, 0);
  EXPECT_EQ(plan.items.size(), plan.jobs.size());
}

TEST(WorkPlan, AWindowLeavesOutWhatNoRowSees) {
  const std::vector<SequenceRows> sequences = {rows(1000, 1)};
  const GroupPlan plan = make_group_plan(sequences, 16, {1, 1, 1});
  ASSERT_EQ(plan.jobs.size(), 1U);
  EXPECT_EQ(plan.jobs[0].chunk_begin, 3);  // positions 985 to 1000 lie in chunk 3 (768 to 1023)
  EXPECT_EQ(plan.jobs[0].chunk_end, 4);
  EXPECT_EQ(plan.blocks_read, 2);
}

TEST(WorkPlan, ItemsCoverEveryRowHeadAndChunkOnceWithTheBiggestFirst) {
  const std::vector<SequenceRows> sequences = {rows(0, 1), rows(5000, 3), rows(300, 200),
                                               rows(255, 2)};
  const TileShape shape{4, 2, 3};
  const GroupPlan plan = make_group_plan(sequences, 0, shape);
  std::map<std::pair<int, int>, std::set<int>> rows_seen;  // by (sequence, head)
  std::set<std::pair<int, int>> items;
  std::int64_t last_cost = INT64_MAX;
  for (const WorkItem& item : plan.items) {
    EXPECT_TRUE(items.insert({item.job, item.chunk}).second);
    const TileJob& job = plan.jobs[static_cast<std::size_t>(item.job)];
    EXPECT_EQ(item.chunk < 0, job.split_index < 0);
    const std::int64_t chunks = item.chunk < 0 ? job.chunk_end - job.chunk_begin : 1;
    EXPECT_LE(chunks * job.num_rows, last_cost);
    last_cost = chunks * job.num_rows;
  }
  std::size_t expected_items = 0;
  for (const TileJob& job : plan.jobs) {
    expected_items +=
        job.split_index < 0 ? 1U : static_cast<std::size_t>(job.chunk_end - job.chunk_begin);
    for (int row = job.first_row; row < job.first_row + job.num_rows; ++row) {
      EXPECT_TRUE(rows_seen[std::make_pair(job.sequence, job.kv_head)].insert(row).second);
    }
  }
  EXPECT_EQ(plan.items.size(), expected_items);
  for (int s = 0; s < 4; ++s) {
    for (int head = 0; head < shape.num_kv_heads; ++head) {
      EXPECT_EQ(rows_seen[std::make_pair(s, head)].size(),
                static_cast<std::size_t>(sequences[static_cast<std::size_t>(s)].num_rows));
    }
  }
}

TEST(WorkPlan, PositionsThatAreGoneHaveNoChunksWhereThereIsNoWindow) {
  std::vector<SequenceRows> sequences = {rows(1600, 1)};
  sequences[0].num_gone = 608;
  const GroupPlan plan = make_group_plan(sequences, 0, {1, 1, 1});
  EXPECT_EQ(plan.jobs[0].chunk_end, 4);  // place 992
  EXPECT_EQ(plan.blocks_read, 63);
  const GroupPlan windowed = make_group_plan(sequences, 20, {1, 1, 1});
  EXPECT_EQ(windowed.jobs[0].chunk_begin, 6);
  EXPECT_EQ(windowed.jobs[0].chunk_end, 7);
}

TEST(WorkPlan, ArchivedPagesHaveChunksBehindThoseOfBlocks) {
  std::vector<SequenceRows> sequences = {rows(1600, 1), rows(1600, 1)};
  const std::vector<std::uint8_t> pages(40);
  for (SequenceRows& of : sequences) {
    of.num_gone = 320;
    of.archived = {10, 50, pages};
  }
  sequences[1].first_sparse_position = 0;
  SparseOptions options;
  options.token_budget = 512;
  const SparseRows sparse = find_sparse_rows(sequences, options, 1);
  const GroupPlan plan = make_group_plan(sequences, 0, {1, 1, 1}, sparse.rows);
  ASSERT_EQ(plan.jobs.size(), 2U);
  EXPECT_EQ(plan.jobs[0].chunk_end, 3);  // place 1280 - 640
  EXPECT_EQ(plan.jobs[0].archived_chunks, 3);
  EXPECT_EQ(plan.jobs[0].end(), 6);
  EXPECT_EQ(plan.jobs[1].chunk_end, 2);        // 32 blocks, all of which
  EXPECT_EQ(plan.jobs[1].archived_chunks, 2);  // may be pages
  EXPECT_EQ(plan.items.size(), 6U + 4U);
  EXPECT_EQ(plan.num_split_chunks, 6 + 4);
  EXPECT_EQ(plan.blocks_read, 41 + 32);
  EXPECT_EQ(plan.pages_read, 40);
  const GroupPlan windowed = make_group_plan(sequences, 100, {1, 1, 1});
  EXPECT_EQ(windowed.pages_read, 0);
  EXPECT_EQ(windowed.jobs[0].archived_chunks, 0);
}

TEST(WorkPlan, SparseRowsAreJobsOfTheirOwnBesideDenseTiles) {
  std::vector<SequenceRows> sequences = {rows(1000, 5), rows(100, 40), rows(3000, 1)};
  sequences[0].first_sparse_position = 1002;
  sequences[2].first_sparse_position = 0;
  SparseOptions options;
  options.token_budget = 512;
  const SparseRows sparse = find_sparse_rows(sequences, options, 2);
  ASSERT_EQ(sparse.rows.size(), 4U);
  const GroupPlan plan = make_group_plan(sequences, 0, {4, 2, 1}, sparse.rows);
  std::map<int, int> dense_rows;  // by sequence
  int sparse_jobs = 0;
  for (const TileJob& job : plan.jobs) {
    if (job.sparse_row < 0) {
      dense_rows[job.sequence] += job.num_rows;
      continue;
    }
    ++sparse_jobs;
    EXPECT_EQ(job.num_rows, 1);
    EXPECT_EQ(job.chunk_begin, 0);
    EXPECT_EQ(job.chunk_end, 2);  // 32 blocks
    EXPECT_EQ(job.first_row, sparse.rows[static_cast<std::size_t>(job.sparse_row)].row);
  }
  EXPECT_EQ(sparse_jobs, 4 * 2);
  EXPECT_EQ(dense_rows[0], 2 * 2);
  EXPECT_EQ(dense_rows[1], 40 * 2);
  EXPECT_EQ(dense_rows[2], 0);
  EXPECT_EQ(plan.blocks_read, 2 * (63 + 9 + 4 * 32));
}

}  // namespace
}  // namespace karez
