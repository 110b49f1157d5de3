// The rows of one sequence in a batched forward: consecutive positions, consecutive rows.
//
// A prompt chunk, a decode row and several draft rows are all the same thing: a range of tokens.
// A row at position p attends to positions [0, p] of its own sequence (or (p - window, p]), or, if
// it is sparse, to blocks of them that it selects.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "kv/block_table.h"

namespace karez {

class QueryRing;

// Entries [begin, end) of a table that are archived pages: 16 pairs each in 4 bits
// (archive_page.h), several in one block. Entry e is page pages[e - begin] of its block.
struct ArchivedEntries {
  int begin = 0;
  int end = 0;
  std::span<const std::uint8_t> pages;  // [end - begin]

  int count() const { return end - begin; }
  bool contains(int entry) const { return entry >= begin && entry < end; }
  int page_of(int entry) const { return pages[static_cast<std::size_t>(entry - begin)]; }
};

struct SequenceRows {
  // Of a sequence whose rows all attend to everything.
  static constexpr int kNeverSparse = std::numeric_limits<int>::max();

  std::vector<BlockTableView>
      tables;              // [num_layer_groups]; they cover first_position + num_rows tokens
  int first_position = 0;  // of the first row
  int num_rows = 0;        // > 0
  int first_row = 0;       // in the batch
  // Rows from this position on select their blocks (SparseOptions): a property of the request, such
  // as the end of its prompt, so that a row's result does not depend on the batch.
  int first_sparse_position = kNeverSparse;
  // So many of the last rows only foretell what others will read: where they select, they take the
  // blocks that are at hand and wait for none. Their results are guesses.
  int num_hint_rows = 0;

  // Compression of the layers without a window: what lies before the rows may be fewer pairs than
  // positions, in another order, and partly archived. The rows' own positions are true ones.
  int num_gone = 0;  // positions without an entry, whole blocks: p is in (p - num_gone) / 16
  ArchivedEntries archived;      // all before the rows' own entries
  QueryRing* queries = nullptr;  // keeps the rows' queries; borrowed; null: nobody asks for them

  // Where the row at a position stands among what tables of layers with that window hold.
  int place_of(int position, int window) const {
    return window == 0 ? position - num_gone : position;
  }
};

}  // namespace karez
