// Opening, forking, cutting and closing sequences. Growth is in kv_cache_extend.cpp.
#include "kv/kv_cache_manager.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kv/kv_cache_manager_impl.h"
#include "kv/window_blocks.h"

namespace karez {

Expected<std::unique_ptr<KVCacheManager>> KVCacheManager::create(const KVCacheSpec& spec,
                                                                 std::int64_t cap_bytes,
                                                                 std::unique_ptr<Tier> home,
                                                                 const Clock& clock) {
  if (auto valid = spec.validate(); !valid) {
    return fail(valid.error());
  }
  std::int64_t home_blocks = 0;
  if (home != nullptr) {
    KAREZ_CHECK(home->block_bytes() == spec.slot_bytes(), "a home for blocks of this size");
    const TierCapacity capacity = home->capacity();
    home_blocks = (capacity.num_extents + capacity.num_foreign_extents) * kExtentBlocks;
  }
  auto blocks = LogicalBlocks::create(spec, cap_bytes, home_blocks);
  if (!blocks) {
    return fail(blocks.error());
  }
  auto impl = std::make_unique<Impl>(spec, std::move(*blocks));
  if (home != nullptr) {
    impl->residency = std::make_unique<Residency>(impl->blocks, std::move(home), clock);
    impl->blocks.set_residency(impl->residency.get());
  }
  return std::unique_ptr<KVCacheManager>(new KVCacheManager(std::move(impl)));
}

KVCacheManager::KVCacheManager(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

KVCacheManager::~KVCacheManager() {
  KAREZ_CHECK(impl_->blocks.num_pins() == 0, "a BlockPin outlives its KVCacheManager");
  KAREZ_CHECK(impl_->new_blocks.empty(), "NewBlocks outlive their KVCacheManager");
  impl_->blocks.set_residency(nullptr);
}

// Ids are not used again before all 2^32 - 1 others were, so that a stale id is noticed.
SequenceId KVCacheManager::Impl::add(CachedSequence sequence) {
  KAREZ_CHECK(sequences.size() < SequenceId::kNoneValue, "too many sequences are open");
  SequenceId id(next_sequence++);
  while (id.is_none() || sequences.contains(id)) {
    id = SequenceId(next_sequence++);
  }
  sequences.emplace(id, std::move(sequence));
  return id;
}

void KVCacheManager::Impl::drop_from(CachedTable& table, std::int64_t first) {
  const auto size = static_cast<std::int64_t>(table.blocks.size());
  for (std::int64_t i = size; i-- > std::max(first, table.num_released);) {
    blocks.drop_reference(table.blocks[static_cast<std::size_t>(i)]);
  }
  table.blocks.resize(static_cast<std::size_t>(std::min(first, size)));
  table.num_released = std::min(table.num_released, first);
  table.num_sent = std::min(table.num_sent, first);
}

bool KVCacheManager::Impl::can_cut(const CachedTable& table, std::int64_t window, int num_tokens) {
  const std::int64_t first_kept = first_kept_block(num_tokens, window);
  return table.num_compressed <= table.num_full_entries(num_tokens) &&
         (table.num_released <= first_kept || first_kept == num_blocks(num_tokens));
}

SequenceId KVCacheManager::open() {
  return impl_->add(CachedSequence{0, std::vector<CachedTable>(layer_groups().size())});
}

std::optional<SequenceId> KVCacheManager::fork(SequenceId parent, int num_tokens) {
  const CachedSequence& source = impl_->find(parent);
  KAREZ_CHECK(num_tokens >= 0 && num_tokens <= source.num_tokens,
              "a fork has at most its parent's tokens");
  for (std::size_t g = 0; g < source.tables.size(); ++g) {
    if (!Impl::can_cut(source.tables[g], layer_groups()[g].window, num_tokens)) {
      return std::nullopt;
    }
  }
  CachedSequence child{num_tokens, {}};
  child.tables.reserve(source.tables.size());
  for (const CachedTable& table : source.tables) {
    CachedTable& copy = child.tables.emplace_back(table);
    const std::int64_t size = table.num_entries(num_tokens);
    copy.blocks.resize(static_cast<std::size_t>(size));
    copy.num_released = std::min(table.num_released, size);
    copy.num_sent = std::min(table.num_sent, size);
    for (std::int64_t i = copy.num_released; i < size; ++i) {
      impl_->blocks.add_reference(table.blocks[static_cast<std::size_t>(i)]);
    }
  }
  return impl_->add(std::move(child));
}

void KVCacheManager::close(SequenceId sequence) {
  CachedSequence& closed = impl_->find(sequence);
  // From the end to the start, all groups side by side: idle blocks are taken in this order, and a
  // cached block is of no use without those before it.
  for (std::int64_t size = num_blocks(closed.num_tokens); size-- > 0;) {
    for (CachedTable& table : closed.tables) {
      impl_->drop_from(table, size);
    }
  }
  impl_->sequences.erase(sequence);
}

bool KVCacheManager::truncate(SequenceId sequence, int num_tokens) {
  CachedSequence& target = impl_->find(sequence);
  KAREZ_CHECK(num_tokens >= 0 && num_tokens <= target.num_tokens,
              "truncate() does not make a sequence longer");
  for (std::size_t g = 0; g < target.tables.size(); ++g) {
    if (!Impl::can_cut(target.tables[g], layer_groups()[g].window, num_tokens)) {
      return false;
    }
  }
  for (CachedTable& table : target.tables) {
    impl_->drop_from(table, table.num_entries(num_tokens));
    // A last block that is cut becomes full again later.
    table.num_sent = std::min(table.num_sent, table.num_full_entries(num_tokens));
  }
  target.num_tokens = num_tokens;
  return true;
}

BlockPin KVCacheManager::pin(SequenceId sequence) {
  std::vector<BlockId> pinned;
  for (const CachedTable& table : impl_->find(sequence).tables) {
    pinned.insert(pinned.end(), table.blocks.begin() + table.num_released, table.blocks.end());
  }
  for (const BlockId block : pinned) {
    impl_->blocks.pin(block);
  }
  return pinned.empty() ? BlockPin() : BlockPin(this, std::move(pinned));
}

void KVCacheManager::unpin(const std::vector<BlockId>& blocks) {
  for (const BlockId block : blocks) {
    impl_->blocks.unpin(block);
  }
}

int KVCacheManager::num_tokens(SequenceId sequence) const {
  return impl_->find(sequence).num_tokens;
}

BlockTableView KVCacheManager::table(SequenceId sequence, int group) const {
  const CachedSequence& source = impl_->find(sequence);
  KAREZ_CHECK(group >= 0 && static_cast<std::size_t>(group) < source.tables.size(),
              "no such layer group");
  return source.tables[static_cast<std::size_t>(group)].blocks;
}

const KVCacheSpec& KVCacheManager::spec() const { return impl_->spec; }

const std::vector<LayerGroup>& KVCacheManager::layer_groups() const {
  return impl_->blocks.groups();
}

std::uint32_t KVCacheManager::first_block_id(int group) const {
  return impl_->blocks.first_id(group);
}

std::size_t KVCacheManager::num_block_ids(int group) const { return impl_->blocks.num_ids(group); }

int KVCacheManager::group_of_layer(int layer) const {
  KAREZ_CHECK(layer >= 0 && layer < impl_->spec.num_layers, "no such layer");
  return impl_->blocks.group_of_layer(layer);
}

KVLayerView KVCacheManager::layer(int layer) const {
  KAREZ_CHECK(layer >= 0 && layer < impl_->spec.num_layers, "no such layer");
  return impl_->blocks.layer(layer);
}

}  // namespace karez
