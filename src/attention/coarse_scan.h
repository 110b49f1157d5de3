// The first level of selection in long contexts: which blocks are worth scanning.
//
// From the coarse records of the key index (key_index.h): a block's score for a query head is that
// of its mean key, minus the logarithm of the head's total; for a row it is the largest over the
// heads. The candidates with the highest scores, the sink blocks and the recent ones are then
// scanned and chosen from as if they were the whole context.
//
// How many: a quarter of the blocks where two levels begin, and from there with the square root of
// the context, so that the time of a selection grows much more slowly than the context; never less
// than twice what is chosen.
// What it costs in quality, on 16,000 tokens of Python code and Gemma 3 270M at a budget of 1,024:
// the blocks chosen hold 0.678 of the attention mass with a quarter of the blocks as candidates and
// 0.660 with an eighth, against 0.680 in one level; the worst hundredth of the rows loses nothing.
// Thread: a CoarseScan is used by one thread. Owns: its scratch, sized by the context.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "attention/block_selector.h"
#include "attention/entry_records.h"
#include "attention/index_query.h"
#include "attention/key_index.h"
#include "attention/sparse_rows.h"
#include "kv/block_table.h"

namespace karez {

// The shape of a row's context without the blocks that its first level leaves out; the row's own
// where there is one level.
SelectionShape scanned_shape(const SelectionShape& shape, const SparseOptions& options);

class CoarseScan {
 public:
  explicit CoarseScan(int head_dim);

  // Begins a row.
  void start(const SelectionShape& shape);
  // scan: of r2; query: prepared for r2; scores: scratch of the scan.
  // archived: of the table. Requires: index.has_coarse(); every block before the recent ones is
  // complete.
  void add_head(const IndexScan& scan, const IndexQuery& query, const KeyIndexView& index,
                int kv_head, BlockTableView table, std::span<float> scores,
                const ArchivedEntries& archived = {});
  // Of the blocks before the recent ones: log2 of the share that the mean key has in the head's
  // total over mean keys, the largest over the heads added. Valid until start().
  std::span<const float> block_scores() const { return scores_; }
  // The total of query head `vector` of the last head added, log2.
  float log2_total(int vector) const { return log2_totals_[static_cast<std::size_t>(vector)]; }
  // Positions of the blocks to scan, ascending: sink, candidates, recent. Valid until start().
  std::span<const std::int32_t> list(const SelectionShape& scanned, SelectorScratch& scratch);

 private:
  void gather(const EntryRecords& records, int first, int count);

  int head_dim_;
  SelectionShape shape_;
  std::vector<std::byte> records_;    // of kRecords blocks of r2, each of 16 coarse ones
  std::vector<float> vector_scores_;  // [group][num_blocks]
  std::vector<float> scores_;         // [num_blocks]
  std::vector<float> log2_totals_;    // [group]
  std::vector<std::int32_t> list_;
};

}  // namespace karez
