// Windows of a sequence in fewer, or smaller, blocks.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kv/kv_cache_manager.h"
#include "kv/kv_cache_manager_impl.h"

namespace karez {

void NewBlocks::release() {
  if (manager_ != nullptr) {
    manager_->release(blocks_);
  }
  manager_ = nullptr;
  blocks_.clear();
}

void KVCacheManager::release(std::span<const BlockId> new_blocks) {
  for (const BlockId block : new_blocks) {
    impl_->new_blocks.erase(block.value);
    impl_->blocks.drop_reference(block);
  }
}

std::int64_t KVCacheManager::slots_of_blocks(int group, std::int64_t count) const {
  return count * impl_->blocks.slots_per_block(group);
}

std::optional<NewBlocks> KVCacheManager::new_blocks(int group, std::int64_t count) {
  const std::int64_t slots = slots_of_blocks(group, count);
  if (slots > impl_->blocks.num_available_slots() && impl_->residency != nullptr) {
    impl_->residency->settle();
  }
  std::vector<BlockId> blocks(static_cast<std::size_t>(count));
  if (slots > impl_->blocks.num_available_slots() || !impl_->blocks.allocate(group, blocks)) {
    return std::nullopt;
  }
  for (const BlockId block : blocks) {
    impl_->new_blocks.insert(block.value);
  }
  return NewBlocks(this, std::move(blocks));
}

void KVCacheManager::compress(SequenceId sequence, int group, const TokenRange& window,
                              NewBlocks kept, NewBlocks archived,
                              std::span<const std::uint8_t> pages) {
  CachedSequence& source = impl_->find(sequence);
  CachedTable& table = source.tables[static_cast<std::size_t>(group)];
  KAREZ_CHECK(layer_groups()[static_cast<std::size_t>(group)].window == 0,
              "sliding windows are not compressed");
  KAREZ_CHECK(window.begin % kBlockSize == 0 && window.num_tokens % kBlockSize == 0 &&
                  window.begin + window.num_tokens <= source.num_tokens,
              "whole, full blocks are compressed");
  const std::int64_t first = window.begin / kBlockSize - table.num_gone;
  const std::int64_t count = window.num_tokens / kBlockSize;
  KAREZ_CHECK(first >= table.num_compressed && count > 0, "a window is compressed once");
  if (table.num_compressed == 0) {
    table.archived_begin = first;
  }
  KAREZ_CHECK(table.num_compressed == 0 || first == table.num_compressed,
              "windows follow each other");
  std::vector<BlockId>& blocks = table.blocks;
  const auto at = [&](std::int64_t entry) { return blocks.begin() + entry; };
  const std::vector<BlockId> old(at(first), at(first + count));
  blocks.erase(at(first), at(first + count));
  blocks.insert(at(first), kept.blocks_.begin(), kept.blocks_.end());
  // A block of pages begins with page 0 and has a reference for each of its pages.
  std::vector<BlockId> entries;
  std::size_t block = 0;
  for (const std::uint8_t page : pages) {
    if (page == 0 && !entries.empty()) {
      ++block;
    }
    KAREZ_CHECK(block < archived.blocks_.size(), "pages of the archived blocks");
    if (page != 0) {
      impl_->blocks.add_reference(archived.blocks_[block]);
    }
    entries.push_back(archived.blocks_[block]);
  }
  KAREZ_CHECK(pages.empty() ? archived.blocks_.empty() : block + 1 == archived.blocks_.size(),
              "every archived block has a page");
  const auto num_archived = static_cast<std::int64_t>(table.archived_pages.size());
  blocks.insert(at(table.archived_begin + num_archived), entries.begin(), entries.end());
  table.archived_pages.insert(table.archived_pages.end(), pages.begin(), pages.end());
  const auto num_new = static_cast<std::int64_t>(kept.blocks_.size() + pages.size());
  KAREZ_CHECK(num_new <= count, "a table does not grow by compression");
  table.num_gone += count - num_new;
  table.num_compressed = first + num_new;
  table.num_sent = std::min(table.num_sent, table.archived_begin + num_archived);
  for (NewBlocks* taken : {&kept, &archived}) {
    for (const BlockId used : taken->blocks_) {
      impl_->new_blocks.erase(used.value);
    }
    taken->manager_ = nullptr;
    taken->blocks_.clear();
  }
  for (const BlockId dropped : old) {
    impl_->blocks.drop_reference(dropped);
  }
}

int KVCacheManager::num_gone(SequenceId sequence) const {
  std::int64_t gone = 0;
  for (const CachedTable& table : impl_->find(sequence).tables) {
    gone = std::max(gone, table.num_gone);
  }
  return static_cast<int>(gone * kBlockSize);
}

ArchivedEntries KVCacheManager::archived(SequenceId sequence) const {
  for (const CachedTable& table : impl_->find(sequence).tables) {
    if (!table.archived_pages.empty()) {
      const auto begin = static_cast<int>(table.archived_begin);
      return {begin, begin + static_cast<int>(table.archived_pages.size()), table.archived_pages};
    }
  }
  return {};
}

KVCacheManager::CompressedPart KVCacheManager::compressed_part(SequenceId sequence) const {
  CompressedPart part;
  for (const CachedTable& table : impl_->find(sequence).tables) {
    if (table.num_compressed == 0) {
      continue;
    }
    const auto entries = static_cast<int>(table.num_compressed - table.archived_begin);
    part.first_entry = static_cast<int>(table.archived_begin);
    part.num_before = entries + static_cast<int>(table.num_gone);
    part.num_archived_pages = static_cast<int>(table.archived_pages.size());
    part.num_kept = entries - part.num_archived_pages;
    part.num_archived_blocks =
        static_cast<int>(std::ranges::count(table.archived_pages, std::uint8_t{0}));
  }
  return part;
}

std::optional<int> KVCacheManager::compressible_group() const {
  for (std::size_t g = 0; g < layer_groups().size(); ++g) {
    if (layer_groups()[g].window == 0) {
      return static_cast<int>(g);
    }
  }
  return std::nullopt;
}

}  // namespace karez
