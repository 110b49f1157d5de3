// What the store says about itself: figures, and whether its invariants hold.
#include <fmt/format.h>

#include "kv/kv_cache_manager.h"
#include "kv/kv_cache_manager_impl.h"
#include "kv/window_blocks.h"

namespace karez {

namespace {

// The shape of one table; adds its references to `references`.
std::string check_table(SequenceId id, const CachedTable& table, std::int64_t window,
                        int num_tokens, std::vector<std::uint32_t>& references) {
  const auto size = static_cast<std::int64_t>(table.blocks.size());
  if (size != table.num_entries(num_tokens)) {
    return fmt::format("sequence {} has {} tokens in {} blocks, {} are gone", id.value, num_tokens,
                       size, table.num_gone);
  }
  const std::int64_t archived_end =
      table.archived_begin + static_cast<std::int64_t>(table.archived_pages.size());
  if (table.num_compressed > table.num_full_entries(num_tokens) ||
      archived_end > table.num_compressed || (window > 0 && table.num_compressed > 0)) {
    return fmt::format("sequence {} has {} compressed and {} archived blocks of {}", id.value,
                       table.num_compressed, table.archived_pages.size(), size);
  }
  const std::int64_t first_kept = first_kept_block(num_tokens, window);
  if (table.num_released > first_kept && first_kept < size) {
    return fmt::format("sequence {} has released {} blocks, its next row reads from block {} on",
                       id.value, table.num_released, first_kept);
  }
  for (std::int64_t i = 0; i < size; ++i) {
    const BlockId block = table.blocks[static_cast<std::size_t>(i)];
    if (block.is_none() != (i < table.num_released)) {
      return fmt::format("sequence {} has released {} blocks, block {} is {}", id.value,
                         table.num_released, i, block.is_none() ? "missing" : "there");
    }
    if (block.is_none()) {
      continue;
    }
    if (block.value >= references.size()) {
      return fmt::format("sequence {} names block {} of {}", id.value, block.value,
                         references.size());
    }
    ++references[block.value];
  }
  return {};
}

}  // namespace

KVCacheStats KVCacheManager::stats() const {
  const LogicalBlocks& blocks = impl_->blocks;
  const BlockPool& pool = blocks.pool();
  // An entry of the map is a node with a link and a cached hash.
  constexpr std::size_t kMapNodeBytes = sizeof(std::pair<const SequenceId, CachedSequence>) + 16;
  std::size_t metadata = sizeof(Impl) + blocks.metadata_bytes() +
                         impl_->sequences.bucket_count() * sizeof(void*) +
                         impl_->sequences.size() * kMapNodeBytes;
  for (const auto& [id, sequence] : impl_->sequences) {
    metadata += sequence.tables.capacity() * sizeof(CachedTable);
    for (const CachedTable& table : sequence.tables) {
      metadata += table.blocks.capacity() * sizeof(BlockId) + table.archived_pages.capacity();
    }
  }
  if (impl_->residency != nullptr) {
    metadata += impl_->residency->metadata_bytes();
  }
  KVCacheStats stats;
  stats.slots_total = pool.num_slots();
  stats.slots_idle = blocks.num_idle_slots();
  stats.slots_used = pool.num_held() - stats.slots_idle -
                     (impl_->residency == nullptr ? 0 : impl_->residency->num_loose_slots());
  stats.cap_bytes = pool.capacity_bytes();
  stats.used_bytes = stats.slots_used * static_cast<std::int64_t>(pool.slot_bytes());
  stats.metadata_bytes = static_cast<std::int64_t>(metadata);
  stats.blocks_used = blocks.num_used();
  stats.blocks_shared = blocks.num_shared();
  stats.copies = impl_->copies;
  return stats;
}

std::int64_t KVCacheManager::slots_for_sequences() const {
  return impl_->blocks.pool().num_slots() - (impl_->residency == nullptr ? 0 : 1);
}

std::string KVCacheManager::check_invariants() const {
  std::vector<std::uint32_t> references(impl_->blocks.num_ids());
  for (const auto& [id, sequence] : impl_->sequences) {
    for (std::size_t g = 0; g < sequence.tables.size(); ++g) {
      std::string problem = check_table(id, sequence.tables[g], layer_groups()[g].window,
                                        sequence.num_tokens, references);
      if (!problem.empty()) {
        return problem;
      }
    }
  }
  for (const std::uint32_t block : impl_->new_blocks) {
    ++references[block];
  }
  return impl_->blocks.check(references);
}

}  // namespace karez
