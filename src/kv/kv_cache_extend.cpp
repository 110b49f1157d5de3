// How sequences grow: blocks out of the window are released, new ones taken, shared ones copied.
#include <algorithm>
#include <array>
#include <limits>

#include "base/check.h"
#include "kv/kv_cache_manager.h"
#include "kv/kv_cache_manager_impl.h"
#include "kv/window_blocks.h"

namespace karez {

namespace {

// What extend() does to one table.
struct Growth {
  std::int64_t new_blocks = 0;     // appended
  bool copies_last_block = false;  // it is partly filled and others read it, or may find it
  std::int64_t blocks_taken() const { return new_blocks + (copies_last_block ? 1 : 0); }
};

Growth growth_of(const LogicalBlocks& blocks, const CachedTable& table, int old_tokens,
                 int num_tokens) {
  const std::int64_t end = std::int64_t{old_tokens} + num_tokens;
  return Growth{
      table.num_entries(end) - static_cast<std::int64_t>(table.blocks.size()),
      num_tokens > 0 && old_tokens % kBlockSize != 0 &&
          (blocks.is_shared(table.blocks.back()) || blocks.is_cached(table.blocks.back()))};
}

}  // namespace

void KVCacheManager::Impl::release_before(CachedTable& table, std::int64_t window,
                                          std::int64_t position) {
  const std::int64_t end = first_kept_block(position, window);
  for (; table.num_released < end; ++table.num_released) {
    BlockId& block = table.blocks[static_cast<std::size_t>(table.num_released)];
    blocks.drop_reference(block);
    block = BlockId::none();
  }
}

bool KVCacheManager::extend(SequenceId sequence, int num_tokens) {
  CachedSequence& target = impl_->find(sequence);
  KAREZ_CHECK(num_tokens >= 0, "extend() does not make a sequence shorter");
  const int old_tokens = target.num_tokens;
  LogicalBlocks& blocks = impl_->blocks;
  std::int64_t slots_taken = 0;
  for (std::size_t g = 0; g < target.tables.size(); ++g) {
    impl_->release_before(target.tables[g], layer_groups()[g].window, old_tokens);
    slots_taken += growth_of(blocks, target.tables[g], old_tokens, num_tokens).blocks_taken() *
                   blocks.slots_per_block(static_cast<int>(g));
  }
  if (num_tokens > std::numeric_limits<int>::max() - old_tokens) {
    return false;
  }
  Residency* residency = impl_->residency.get();
  std::array<bool, kMaxLayerGroups> was_home = {};
  if (residency != nullptr) {
    if (num_tokens > 0 && old_tokens % kBlockSize != 0) {
      for (std::size_t g = 0; g < target.tables.size(); ++g) {
        const BlockId last = target.tables[g].blocks.back();
        was_home[g] = residency->is_any_home(last);
        if (!residency->reopen(last)) {
          return false;
        }
      }
    }
    if (slots_taken > blocks.num_available_slots()) {
      residency->settle();
    }
  }
  if (slots_taken > blocks.num_available_slots()) {
    return false;
  }
  for (std::size_t g = 0; g < target.tables.size(); ++g) {
    std::vector<BlockId>& table = target.tables[g].blocks;
    const Growth growth = growth_of(blocks, target.tables[g], old_tokens, num_tokens);
    if (growth.blocks_taken() == 0) {
      continue;
    }
    const BlockId old_last = table.empty() ? BlockId::none() : table.back();
    const bool goes_home_again = growth.copies_last_block && was_home[g];
    const std::size_t first = table.size() - (growth.copies_last_block ? 1 : 0);
    table.resize(table.size() + static_cast<std::size_t>(growth.new_blocks));
    KAREZ_CHECK(blocks.allocate(static_cast<int>(g), std::span(table).subspan(first)),
                "fewer slots are available than were counted");
    if (growth.copies_last_block) {
      blocks.copy(old_last, table[first]);
      if (impl_->on_copy) {
        impl_->on_copy(old_last, table[first]);
      }
      if (goes_home_again) {
        residency->write_home(old_last);
      }
      blocks.drop_reference(old_last);
      ++impl_->copies;
    }
  }
  target.num_tokens = old_tokens + num_tokens;
  return true;
}

std::int64_t KVCacheManager::slots_needed(SequenceId sequence, int num_tokens) const {
  const CachedSequence& target = impl_->find(sequence);
  KAREZ_CHECK(num_tokens >= 0, "extend() does not make a sequence shorter");
  const LogicalBlocks& blocks = impl_->blocks;
  std::int64_t slots = 0;
  for (std::size_t g = 0; g < target.tables.size(); ++g) {
    const CachedTable& table = target.tables[g];
    std::int64_t net = growth_of(blocks, table, target.num_tokens, num_tokens).blocks_taken();
    const std::int64_t end = first_kept_block(target.num_tokens, layer_groups()[g].window);
    for (std::int64_t i = table.num_released; i < end; ++i) {
      net -= blocks.is_last_reference(table.blocks[static_cast<std::size_t>(i)]) ? 1 : 0;
    }
    slots += net * blocks.slots_per_block(static_cast<int>(g));
  }
  return slots;
}

}  // namespace karez
