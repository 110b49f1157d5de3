// The records of the key index for the entries of one sequence's table: those of blocks, and where
// entries are archived pages, those of pages.
//
// Thread: a view of what it was made from.
#pragma once

#include <cstddef>

#include "attention/key_index.h"
#include "attention/sequence_rows.h"
#include "kv/block_table.h"

namespace karez {

class EntryRecords {
 public:
  EntryRecords(const KeyIndexView& index, int kv_head, BlockTableView table,
               const ArchivedEntries& archived)
      : index_(index), kv_head_(kv_head), table_(table), archived_(archived) {}

  // Requires: entry < num_entries(), and the entry has a block.
  const std::byte* record(int entry) const {
    const BlockId block = block_at(entry);
    return archived_.contains(entry) ? index_.page_record(kv_head_, block, archived_.page_of(entry))
                                     : index_.record(kv_head_, block);
  }
  const std::byte* coarse_record(int entry) const {
    const BlockId block = block_at(entry);
    return archived_.contains(entry)
               ? index_.coarse_page_record(kv_head_, block, archived_.page_of(entry))
               : index_.coarse_record(kv_head_, block);
  }
  BlockId block_at(int entry) const { return table_[static_cast<std::size_t>(entry)]; }
  int num_entries() const { return static_cast<int>(table_.size()); }

 private:
  const KeyIndexView& index_;
  int kv_head_;
  BlockTableView table_;
  ArchivedEntries archived_;
};

}  // namespace karez
