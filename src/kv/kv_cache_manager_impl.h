// What KVCacheManager holds. Private to kv/.
//
// Thread: as KVCacheManager.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kv/kv_cache_manager.h"
#include "kv/logical_blocks.h"
#include "kv/residency.h"
#include "kv/window_blocks.h"

namespace karez {

// The blocks of one sequence in one layer group. Each entry that is not none holds a reference.
struct CachedTable {
  std::vector<BlockId> blocks;    // entry i: tokens [16 i, 16 i + 16)
  std::int64_t num_released = 0;  // leading entries that are none: they fell out of the window
  std::int64_t num_sent = 0;      // leading entries that were given to Residency::write_home()

  // Compression, of a group without a window:
  std::int64_t num_gone = 0;        // blocks: token p is in entry p / 16 - num_gone
  std::int64_t num_compressed = 0;  // leading entries that are not cut any more; 0: none is
  std::int64_t archived_begin = 0;  // of them, entries [archived_begin, + archived_pages.size())
  std::vector<std::uint8_t> archived_pages;

  // Entries that num_tokens of the sequence take.
  std::int64_t num_entries(std::int64_t num_tokens) const {
    return num_blocks(num_tokens) - num_gone;
  }
  // Of these, those that are full.
  std::int64_t num_full_entries(std::int64_t num_tokens) const {
    return num_tokens / kBlockSize - num_gone;
  }
};

struct CachedSequence {
  int num_tokens = 0;
  std::vector<CachedTable> tables;  // [num_layer_groups]
};

struct KVCacheManager::Impl {
  Impl(KVCacheSpec cache_spec, LogicalBlocks logical_blocks)
      : spec(std::move(cache_spec)), blocks(std::move(logical_blocks)) {}

  const CachedSequence& find(SequenceId id) const {
    const auto found = sequences.find(id);
    KAREZ_CHECK(found != sequences.end(), "the sequence is not open");
    return found->second;
  }
  CachedSequence& find(SequenceId id) {
    return const_cast<CachedSequence&>(std::as_const(*this).find(id));
  }

  SequenceId add(CachedSequence sequence);
  // Drops the references of the table's leading blocks that no row from `position` on uses.
  void release_before(CachedTable& table, std::int64_t window, std::int64_t position);
  void send_home(CachedTable& table, std::int64_t end);
  // Drops the references of all blocks from index `first` on.
  void drop_from(CachedTable& table, std::int64_t first);
  // The table still has all blocks that a sequence cut to num_tokens uses.
  static bool can_cut(const CachedTable& table, std::int64_t window, int num_tokens);

  KVCacheSpec spec;
  LogicalBlocks blocks;
  std::unordered_map<SequenceId, CachedSequence> sequences;
  std::uint32_t next_sequence = 0;
  std::unordered_set<std::uint32_t> new_blocks;  // have a reference and are in no table yet
  std::int64_t copies = 0;
  std::unique_ptr<Residency> residency;  // of blocks, so it goes first; may be null
  std::function<void(BlockId from, BlockId to)> on_copy;
};

}  // namespace karez
