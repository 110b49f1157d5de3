#include "kv/logical_blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "kv/residency.h"

namespace karez {

Expected<LogicalBlocks> LogicalBlocks::create(const KVCacheSpec& spec, std::int64_t cap_bytes,
                                              std::int64_t home_blocks) {
  auto pool = BlockPool::create(spec.slot_bytes(), cap_bytes);
  if (!pool) {
    return fail(pool.error());
  }
  std::vector<LayerGroup> groups = spec.layer_groups();
  std::int64_t num_ids = 0;
  for (const LayerGroup& group : groups) {
    num_ids += (pool->num_slots() + home_blocks) /
               (static_cast<std::int64_t>(group.layers.size()) * spec.num_kv_heads);
  }
  if (num_ids > std::int64_t{BlockId::kNoneValue}) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("the KV cap is {} bytes with {} blocks below it, which is {} logical "
                            "blocks; allowed are at most {}",
                            cap_bytes, home_blocks, num_ids, BlockId::kNoneValue));
  }
  return LogicalBlocks(spec, std::move(groups), std::move(*pool), home_blocks);
}

LogicalBlocks::LogicalBlocks(const KVCacheSpec& spec, std::vector<LayerGroup> groups,
                             BlockPool pool, std::int64_t home_blocks)
    : pool_(std::move(pool)),
      num_kv_heads_(spec.num_kv_heads),
      groups_(std::move(groups)),
      places_(static_cast<std::size_t>(spec.num_layers)),
      idle_(0) {
  std::uint32_t num_ids = 0;
  std::size_t num_entries = 0;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const auto slots_per_block =
        static_cast<std::int64_t>(groups_[g].layers.size()) * num_kv_heads_;
    const std::int64_t blocks = (pool_.num_slots() + home_blocks) / slots_per_block;
    ranges_.push_back(Range{num_ids, slots_per_block, num_entries, FreeIds(blocks), 0});
    for (const int layer : groups_[g].layers) {
      places_[index(layer)] = LayerPlace{static_cast<int>(g), num_entries};
      num_entries += static_cast<std::size_t>(num_kv_heads_ * blocks);
    }
    num_ids += static_cast<std::uint32_t>(blocks);
  }
  slots_.resize(num_entries);
  references_.resize(num_ids);
  pins_.resize(num_ids);
  presence_.resize(num_ids);
  cached_.resize(num_ids);
  idle_ = IdleBlocks(num_ids);
}

bool LogicalBlocks::allocate(int group, std::span<BlockId> out) {
  Range& range = ranges_[index(group)];
  const auto count = static_cast<std::int64_t>(out.size());
  if (count > num_available_slots() / range.slots_per_block) {
    return false;
  }
  evict_until_free(count * range.slots_per_block);
  // Ids cannot run out before slots: a range has an id for each block that the whole pool, and
  // home, can hold.
  for (BlockId& block : out) {
    const std::uint32_t id = range.free.take();
    range.high_water = std::max(range.high_water, std::size_t{id} + 1);
    block = BlockId(range.first_id + id);
    references_[block.value] = 1;
    presence_[block.value] = {static_cast<std::uint32_t>(range.slots_per_block), 0, 0};
  }
  taken_.resize(out.size());
  std::size_t row = range.first_entry;
  for (std::int64_t i = 0; i < range.slots_per_block; ++i) {
    KAREZ_CHECK(pool_.allocate(taken_), "the pool has fewer free slots than it said");
    for (std::size_t b = 0; b < out.size(); ++b) {
      slots_[row + (out[b].value - range.first_id)] = taken_[b];
    }
    row += stride(range);
  }
  return true;
}

bool LogicalBlocks::allocate_at_home(int group, std::span<BlockId, kExtentBlocks> out) {
  static_assert(kExtentBlocks == 4, "FreeIds gives four at a time");
  Range& range = ranges_[index(group)];
  const auto first = range.free.take_four();
  if (!first) {
    return false;
  }
  range.high_water = std::max(range.high_water, std::size_t{*first} + out.size());
  std::uint32_t id = range.first_id + *first;
  for (BlockId& block : out) {
    block = BlockId(id++);
    references_[block.value] = 1;
    presence_[block.value] = {};
  }
  return true;
}

void LogicalBlocks::add_reference(BlockId block) {
  KAREZ_CHECK(references_[block.value] > 0, "a free block cannot be shared");
  if (++references_[block.value] == 2) {
    ++num_shared_;
  }
}

void LogicalBlocks::drop_reference(BlockId block) {
  KAREZ_CHECK(references_[block.value] > 0, "the block has no reference to drop");
  if (--references_[block.value] == 1) {
    --num_shared_;
  }
  free_if_unused(block);
}

void LogicalBlocks::cache(BlockId block) {
  KAREZ_CHECK(references_[block.value] > 0 && !cached_[block.value],
              "only a used block becomes cached, once");
  cached_[block.value] = true;
}

void LogicalBlocks::uncache(BlockId block) {
  KAREZ_CHECK(cached_[block.value], "the block is not cached");
  cached_[block.value] = false;
  if (idle_.contains(block)) {
    remove_idle(block);
    free(block);
  }
}

void LogicalBlocks::reuse(BlockId block) {
  KAREZ_CHECK(cached_[block.value], "only a cached block is used again");
  if (idle_.contains(block)) {
    remove_idle(block);
  }
  if (++references_[block.value] == 2) {
    ++num_shared_;
  }
}

void LogicalBlocks::remove_idle(BlockId block) {
  const Presence& presence = presence_[block.value];
  idle_.remove(block);
  --num_idle_;
  idle_slots_ -= presence.slots;
  idle_unclean_slots_ -= presence.num_unclean();
  idle_busy_slots_ -= presence.busy;
}

void LogicalBlocks::evict_until_free(std::int64_t slots) {
  if (pool_.num_free() < slots && residency_ != nullptr) {
    residency_->make_room(slots);
  }
  while (pool_.num_free() < slots) {
    KAREZ_CHECK(drop_oldest_idle(), "idle blocks have fewer slots than was counted");
  }
}

bool LogicalBlocks::drop_oldest_idle() {
  const BlockId oldest = idle_.oldest();
  if (oldest.is_none()) {
    return false;
  }
  remove_idle(oldest);
  forget_content(oldest);
  free(oldest);
  return true;
}

void LogicalBlocks::forget_content(BlockId block) {
  if (!cached_[block.value]) {
    return;
  }
  const bool is_idle = idle_.contains(block);
  if (is_idle) {
    remove_idle(block);
  }
  cached_[block.value] = false;
  if (on_evict_) {
    on_evict_(block);
  }
  if (is_idle) {
    free(block);
  }
}

std::vector<BlockRow> LogicalBlocks::rows() const {
  std::vector<BlockRow> rows;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const Range& range = ranges_[g];
    std::size_t entry = range.first_entry;
    for (const int layer : groups_[g].layers) {
      for (int head = 0; head < num_kv_heads_; ++head) {
        rows.push_back({static_cast<int>(g), layer, head, range.first_id, entry, stride(range)});
        entry += stride(range);
      }
    }
  }
  return rows;
}

void LogicalBlocks::put_slot(BlockId block, std::size_t entry, SlotId slot) {
  KAREZ_CHECK(slots_[entry].is_none(), "the block has a slot already");
  slots_[entry] = slot;
  note_presence(block, 1, 0, 0);
}

SlotId LogicalBlocks::take_slot(BlockId block, std::size_t entry) {
  KAREZ_CHECK(!slots_[entry].is_none(), "the block has no slot to take");
  note_presence(block, -1, 0, 0);
  return std::exchange(slots_[entry], SlotId::none());
}

void LogicalBlocks::add_clean(BlockId block, std::int64_t change) {
  note_presence(block, 0, change, 0);
}

void LogicalBlocks::add_busy(BlockId block, std::int64_t change) {
  note_presence(block, 0, 0, change);
}

void LogicalBlocks::note_presence(BlockId block, std::int64_t slots, std::int64_t clean,
                                  std::int64_t busy) {
  Presence& presence = presence_[block.value];
  presence.slots = static_cast<std::uint32_t>(presence.slots + slots);
  presence.clean = static_cast<std::uint32_t>(presence.clean + clean);
  presence.busy = static_cast<std::uint32_t>(presence.busy + busy);
  num_clean_slots_ += clean;
  if (idle_.contains(block)) {
    idle_slots_ += slots;
    idle_unclean_slots_ += slots - clean - busy;
    idle_busy_slots_ += busy;
  }
}

void LogicalBlocks::pin(BlockId block) {
  KAREZ_CHECK(references_[block.value] > 0, "a free block cannot be pinned");
  ++pins_[block.value];
  ++num_pins_;
}

void LogicalBlocks::unpin(BlockId block) {
  KAREZ_CHECK(pins_[block.value] > 0, "the block has no pin to drop");
  --pins_[block.value];
  --num_pins_;
  free_if_unused(block);
}

void LogicalBlocks::free_if_unused(BlockId block) {
  if (references_[block.value] > 0 || pins_[block.value] > 0) {
    return;
  }
  if (cached_[block.value]) {
    const Presence& presence = presence_[block.value];
    idle_.push_newest(block);
    ++num_idle_;
    idle_slots_ += presence.slots;
    idle_unclean_slots_ += presence.num_unclean();
    idle_busy_slots_ += presence.busy;
    return;
  }
  free(block);
}

void LogicalBlocks::free(BlockId block) {
  if (residency_ != nullptr) {
    residency_->forget(block);  // takes the slots that transfers still use
  }
  Range& range = range_of(block);
  const std::uint32_t id = block.value - range.first_id;
  std::size_t entry = range.first_entry + id;
  for (std::int64_t i = 0; i < range.slots_per_block; ++i) {
    if (!slots_[entry].is_none()) {
      pool_.release(std::exchange(slots_[entry], SlotId::none()));
    }
    entry += stride(range);
  }
  presence_[block.value] = {};
  range.free.give_back(id);
}

void LogicalBlocks::copy(BlockId from, BlockId to) {
  const Range& range = range_of(from);
  KAREZ_CHECK(&range == &range_of(to), "blocks of different layer groups");
  KAREZ_CHECK(presence_[from.value].slots == range.slots_per_block, "what is copied is resident");
  std::size_t from_entry = range.first_entry + (from.value - range.first_id);
  std::size_t to_entry = range.first_entry + (to.value - range.first_id);
  for (std::int64_t i = 0; i < range.slots_per_block; ++i) {
    std::memcpy(pool_.data(slots_[to_entry]), pool_.data(slots_[from_entry]), pool_.slot_bytes());
    from_entry += stride(range);
    to_entry += stride(range);
  }
}

LogicalBlocks::Range& LogicalBlocks::range_of(BlockId block) {
  std::size_t g = ranges_.size() - 1;
  while (ranges_[g].first_id > block.value) {
    --g;
  }
  return ranges_[g];
}

int LogicalBlocks::group_of_layer(int layer) const { return places_[index(layer)].group; }

KVLayerView LogicalBlocks::layer(int layer) const {
  const LayerPlace& place = places_[index(layer)];
  const Range& range = ranges_[index(place.group)];
  // Rows are indexed by the ids themselves, so they start first_id entries early. That stays inside
  // slots_: the groups before have at least one entry for each of their blocks.
  const SlotId* rows = slots_.data() + (place.first_entry - range.first_id);
  return KVLayerView(pool_.base(), pool_.slot_bytes(), rows, stride(range));
}

std::int64_t LogicalBlocks::num_used() const {
  std::int64_t used = 0;
  for (const Range& range : ranges_) {
    used += range.free.size() - range.free.num_free();
  }
  return used - num_idle_;
}

std::size_t LogicalBlocks::metadata_bytes() const {
  std::size_t bytes = pool_.metadata_bytes() + places_.capacity() * sizeof(LayerPlace) +
                      (slots_.capacity() + taken_.capacity()) * sizeof(SlotId) +
                      (references_.capacity() + pins_.capacity()) * sizeof(std::uint32_t) +
                      presence_.capacity() * sizeof(Presence) + cached_.capacity() / 8 +
                      idle_.metadata_bytes();
  for (const Range& range : ranges_) {
    bytes += sizeof(Range) + range.free.metadata_bytes();
  }
  for (const LayerGroup& group : groups_) {
    bytes += sizeof(LayerGroup) + group.layers.capacity() * sizeof(int);
  }
  return bytes;
}

}  // namespace karez
