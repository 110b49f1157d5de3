// What a sequence keeps below the fast tier.
#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <utility>

#include "base/check.h"
#include "kv/kv_cache_manager.h"
#include "kv/kv_cache_manager_impl.h"
#include "kv/window_blocks.h"

namespace karez {

Residency* KVCacheManager::residency() { return impl_->residency.get(); }

const Residency* KVCacheManager::residency() const { return impl_->residency.get(); }

void KVCacheManager::Impl::send_home(CachedTable& table, std::int64_t end) {
  std::int64_t i = std::max(table.num_sent, table.num_released);
  for (; i < end; ++i) {
    residency->write_home(table.blocks[static_cast<std::size_t>(i)]);
  }
  table.num_sent = std::max(table.num_sent, i);
}

void KVCacheManager::write_home(SequenceId sequence) {
  if (impl_->residency == nullptr) {
    return;
  }
  CachedSequence& source = impl_->find(sequence);
  for (CachedTable& table : source.tables) {
    impl_->send_home(table, table.num_full_entries(source.num_tokens));
  }
}

std::int64_t KVCacheManager::most_step_tokens(SequenceId sequence, std::int64_t read_tokens,
                                              std::int64_t slots) const {
  const CompressedPart part = compressed_part(sequence);
  // Pages have an entry each, and the block that they share is read once.
  const int entries_more = part.num_archived_pages - part.num_archived_blocks;
  const std::int64_t held =
      num_tokens(sequence) - num_gone(sequence) - std::int64_t{entries_more} * kBlockSize;
  // They stay in their slots while others are packed.
  const std::optional<int> group = compressible_group();
  const std::int64_t slots_packed =
      group ? slots_of_blocks(*group, std::ssize(impl_->new_blocks)) : 0;
  return spec().most_step_tokens(num_tokens(sequence), std::min(held, read_tokens),
                                 slots - slots_packed);
}

bool KVCacheManager::is_last_block_lost(SequenceId sequence) const {
  const CachedSequence& target = impl_->find(sequence);
  return impl_->residency != nullptr && target.num_tokens % kBlockSize != 0 &&
         std::ranges::any_of(target.tables, [&](const CachedTable& table) {
           return impl_->residency->is_lost(table.blocks.back());
         });
}

void KVCacheManager::demote(SequenceId sequence) {
  write_home(sequence);
  if (impl_->residency == nullptr) {
    return;
  }
  CachedSequence& source = impl_->find(sequence);
  if (source.num_tokens % kBlockSize != 0) {
    for (CachedTable& table : source.tables) {
      impl_->residency->write_home(table.blocks.back());
    }
  }
  impl_->residency->advance();
}

std::optional<SequenceId> KVCacheManager::open_at_home(
    int num_tokens,
    const std::function<ExtentId(int layer, int kv_head, std::int64_t first_entry)>& extent_of) {
  KAREZ_CHECK(impl_->residency != nullptr, "a store with a home tier");
  KAREZ_CHECK(num_tokens > 0 && num_tokens % kExtentTokens == 0, "whole extents");
  const std::int64_t size = num_blocks(num_tokens);
  LogicalBlocks& blocks = impl_->blocks;
  CachedSequence sequence{num_tokens, {}};
  bool has_room = true;
  for (std::size_t g = 0; g < layer_groups().size() && has_room; ++g) {
    const std::int64_t kept =
        std::min(size, first_kept_block(num_tokens, layer_groups()[g].window));
    CachedTable& table = sequence.tables.emplace_back();
    table.num_released = kept - kept % kExtentBlocks;
    table.num_sent = size;
    table.blocks.resize(static_cast<std::size_t>(table.num_released));
    while (has_room && static_cast<std::int64_t>(table.blocks.size()) < size) {
      std::array<BlockId, kExtentBlocks> four;
      has_room = blocks.allocate_at_home(static_cast<int>(g), four);
      if (has_room) {
        table.blocks.insert(table.blocks.end(), four.begin(), four.end());
      }
    }
  }
  if (!has_room) {
    for (CachedTable& table : sequence.tables) {
      impl_->drop_from(table, 0);
    }
    return std::nullopt;
  }
  for (std::size_t g = 0; g < sequence.tables.size(); ++g) {
    const CachedTable& table = sequence.tables[g];
    for (const int layer : layer_groups()[g].layers) {
      for (int head = 0; head < spec().num_kv_heads; ++head) {
        for (std::int64_t i = table.num_released; i < size; i += kExtentBlocks) {
          impl_->residency->adopt(layer, head, table.blocks[static_cast<std::size_t>(i)],
                                  extent_of(layer, head, i));
        }
      }
    }
  }
  return impl_->add(std::move(sequence));
}

}  // namespace karez
