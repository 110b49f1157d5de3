#include "attention/sparse_rows.h"

#include <gtest/gtest.h>

namespace karez {
namespace {

SequenceRows rows(int first_position, int num_rows, int first_sparse_position) {
  SequenceRows out;
  out.first_position = first_position;
  out.num_rows = num_rows;
  out.first_sparse_position = first_sparse_position;
  return out;
}

SparseOptions with_budget(int token_budget) {
  SparseOptions options;
  options.token_budget = token_budget;
  return options;
}

TEST(SparseRows, NoneWithoutABudget) {
  const std::vector<SequenceRows> sequences = {rows(5000, 3, 0)};
  EXPECT_TRUE(find_sparse_rows(sequences, SparseOptions{}, 2).rows.empty());
}

TEST(SparseRows, AreRowsBeyondThePromptWhoseContextExceedsTheBudget) {
  const std::vector<SequenceRows> sequences = {rows(5000, 3, SequenceRows::kNeverSparse),
                                               rows(5000, 4, 5002), rows(510, 4, 0),
                                               rows(100, 2, 0), rows(5000, 1, 4000)};
  const SparseRows sparse = find_sparse_rows(sequences, with_budget(512), 3);
  ASSERT_EQ(sparse.rows.size(), 5U);
  const auto is = [&sparse](std::size_t i, int sequence, int row, int position) {
    return sparse.rows[i].sequence == sequence && sparse.rows[i].row == row &&
           sparse.rows[i].position == position;
  };
  EXPECT_TRUE(is(0, 1, 2, 5002));
  EXPECT_TRUE(is(1, 1, 3, 5003));
  EXPECT_TRUE(is(2, 2, 2, 512));  // 513 tokens are more than 512
  EXPECT_TRUE(is(3, 2, 3, 513));
  EXPECT_TRUE(is(4, 4, 0, 5000));
}

TEST(SparseRows, ContextIsWhatTheTableHoldsAndPositionsAreTrue) {
  std::vector<SequenceRows> sequences = {rows(5000, 3, 5001), rows(5000, 3, 0)};
  sequences[0].num_gone = 4480;  // 521 pairs lie before the second row
  sequences[1].num_gone = 4496;
  const SparseRows sparse = find_sparse_rows(sequences, with_budget(512), 1);
  ASSERT_EQ(sparse.rows.size(), 2U);
  EXPECT_EQ(sparse.rows[0].position, 5001);
  EXPECT_EQ(sparse.rows[0].place, 521);
  EXPECT_EQ(sparse.rows[0].shape.num_blocks, 33);
  EXPECT_EQ(sparse.rows[1].position, 5002);
}

TEST(SparseRows, TheArchivedPartOfAListIsARangeOfIt) {
  const std::vector<std::int32_t> list = {0, 3, 7, 8, 12, 20};
  const auto part = [&list](int begin, int end) {
    const ArchivedEntries archived{begin, end, {}};
    const auto found = archived_of(list, archived);
    return std::vector<std::int32_t>(found.begin(), found.end());
  };
  EXPECT_EQ(part(3, 12), (std::vector<std::int32_t>{3, 7, 8}));
  EXPECT_EQ(part(4, 21), (std::vector<std::int32_t>{7, 8, 12, 20}));
  EXPECT_EQ(part(0, 0), std::vector<std::int32_t>{});
  EXPECT_EQ(part(13, 19), std::vector<std::int32_t>{});
}

TEST(SparseRows, ListsOfHeadsAndRowsDoNotOverlap) {
  const std::vector<SequenceRows> sequences = {rows(5000, 2, 0), rows(9000, 1, 0)};
  const SparseRows by_head = find_sparse_rows(sequences, with_budget(512), 3);
  EXPECT_EQ(by_head.num_selected, 3U * 3U * 32U);
  EXPECT_EQ(by_head.rows[1].list_of_head(2), 5U * 32U);
  SparseOptions shared = with_budget(512);
  shared.select_per = SelectPer::kLayer;
  const SparseRows by_layer = find_sparse_rows(sequences, shared, 3);
  EXPECT_EQ(by_layer.num_selected, by_head.num_selected);
  EXPECT_EQ(by_layer.rows[1].list_of_head(2), 5U * 32U);
}

TEST(SparseRows, TheLastRowsOfASequenceAreItsHints) {
  std::vector<SequenceRows> sequences = {rows(5000, 3, 0), rows(9000, 2, 0), rows(5000, 1, 0)};
  sequences[0].num_hint_rows = 2;
  sequences[2].num_hint_rows = 1;
  std::vector<bool> hints;
  for (const SparseRow& row : find_sparse_rows(sequences, with_budget(512), 1).rows) {
    hints.push_back(row.is_hint);
  }
  EXPECT_EQ(hints, (std::vector<bool>{false, true, true, false, false, true}));
}

}  // namespace
}  // namespace karez
