// The invariants of logical blocks, for tests and for debugging a corrupted store.
#include <fmt/format.h>

#include "kv/logical_blocks.h"
#include "kv/residency.h"

namespace karez {

std::string LogicalBlocks::check(std::span<const std::uint32_t> expected_references) const {
  if (expected_references.size() != references_.size()) {
    return fmt::format("{} reference counts are expected for {} blocks", expected_references.size(),
                       references_.size());
  }
  std::vector<bool> seen(static_cast<std::size_t>(pool_.num_slots()));
  std::int64_t slots_owned = residency_ == nullptr ? 0 : residency_->num_loose_slots();
  std::int64_t clean_slots = 0;
  std::int64_t shared = 0;
  std::int64_t pins = 0;
  std::int64_t idle = 0;
  std::int64_t idle_slots = 0;
  std::int64_t idle_unclean = 0;
  std::int64_t idle_busy = 0;
  for (const Range& range : ranges_) {
    for (std::uint32_t i = 0; i < range.free.size(); ++i) {
      const std::uint32_t id = range.first_id + i;
      std::string problem = check_block(range, id, expected_references[id], seen);
      if (!problem.empty()) {
        return problem;
      }
      slots_owned += presence_[id].slots;
      clean_slots += presence_[id].clean;
      shared += references_[id] > 1 ? 1 : 0;
      pins += pins_[id];
      if (idle_.contains(BlockId(id))) {
        ++idle;
        idle_slots += presence_[id].slots;
        idle_unclean += presence_[id].num_unclean();
        idle_busy += presence_[id].busy;
      }
    }
  }
  if (slots_owned != pool_.num_held()) {
    return fmt::format("blocks own {} slots, the pool has handed out {}", slots_owned,
                       pool_.num_held());
  }
  if (clean_slots != num_clean_slots_) {
    return fmt::format("{} slots are clean, counted were {}", clean_slots, num_clean_slots_);
  }
  if (shared != num_shared_ || pins != num_pins_) {
    return fmt::format("{} blocks are shared and {} pins are held, counted were {} and {}", shared,
                       pins, num_shared_, num_pins_);
  }
  if (idle != num_idle_ || idle_slots != idle_slots_) {
    return fmt::format("{} blocks with {} slots are idle, counted were {} with {}", idle,
                       idle_slots, num_idle_, idle_slots_);
  }
  if (idle_unclean != idle_unclean_slots_ || idle_busy != idle_busy_slots_) {
    return fmt::format("{} slots of idle blocks are not clean and {} busy, counted were {} and {}",
                       idle_unclean, idle_busy, idle_unclean_slots_, idle_busy_slots_);
  }
  return {};
}

std::string LogicalBlocks::check_block(const Range& range, std::uint32_t id,
                                       std::uint32_t expected_references,
                                       std::vector<bool>& seen) const {
  if (references_[id] != expected_references) {
    return fmt::format("block {} has {} references, {} are expected", id, references_[id],
                       expected_references);
  }
  const bool in_use = references_[id] > 0 || pins_[id] > 0;
  if (idle_.contains(BlockId(id)) != (cached_[id] && !in_use)) {
    return fmt::format("block {} is {}, {} and {}", id, cached_[id] ? "cached" : "not cached",
                       in_use ? "in use" : "not in use",
                       idle_.contains(BlockId(id)) ? "idle" : "not idle");
  }
  const bool used = in_use || cached_[id];
  if (used == range.free.is_free(id - range.first_id)) {
    return fmt::format("block {} with {} references and {} pins is {}", id, references_[id],
                       pins_[id], used ? "free" : "not free");
  }
  std::size_t entry = range.first_entry + (id - range.first_id);
  std::uint32_t num_slots = 0;
  std::uint32_t num_clean = 0;
  std::uint32_t num_busy = 0;
  for (std::int64_t i = 0; i < range.slots_per_block; ++i) {
    const SlotId slot = slots_[entry];
    const bool is_home = residency_ != nullptr && residency_->is_home(entry);
    const bool is_writing = residency_ != nullptr && residency_->is_writing(entry);
    entry += stride(range);
    if (!used && (!slot.is_none() || is_home)) {
      return fmt::format("block {} is free and still has block {}", id, i);
    }
    if (slot.is_none()) {
      if (used && !is_home && (residency_ == nullptr || !residency_->is_lost(BlockId(id)))) {
        return fmt::format("block {} has no slot {} and is not at home", id, i);
      }
      continue;
    }
    ++num_slots;
    num_clean += is_home ? 1 : 0;
    num_busy += is_writing ? 1 : 0;
    if (slot.value >= pool_.num_slots() || !pool_.is_held(slot)) {
      return fmt::format("block {} owns slot {}, which the pool has not handed out", id,
                         slot.value);
    }
    if (seen[slot.value]) {
      return fmt::format("slot {} has two owners, one is block {}", slot.value, id);
    }
    seen[slot.value] = true;
  }
  const Presence& counted = presence_[id];
  if (counted.slots != num_slots || counted.clean != num_clean || counted.busy != num_busy) {
    return fmt::format(
        "block {} has {} slots, {} of them clean and {} busy, counted were {}, {} and {}", id,
        num_slots, num_clean, num_busy, counted.slots, counted.clean, counted.busy);
  }
  return {};
}

}  // namespace karez
