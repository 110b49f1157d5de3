// Into the fast tier: what a layer needs is read from home, into slots that others give up.
#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "kv/residency.h"

namespace karez {

namespace {

constexpr std::chrono::seconds kReadDeadline{10};

}  // namespace

void Residency::begin_layer(int layer) {
  layer_first_row_ = first_row_of_layer_[static_cast<std::size_t>(layer)];
  ++now_;
  misses_.clear();
}

bool Residency::need(int kv_head, BlockId block) {
  const std::size_t index = layer_first_row_ + static_cast<std::size_t>(kv_head);
  const std::size_t entry = entry_of(rows_[index], block.value);
  if (stamp_[entry] == now_) {
    return false;
  }
  stamp_[entry] = now_;
  ++counters_.blocks_needed;
  if (!blocks_.slot_at(entry).is_none()) {
    return false;
  }
  misses_.push_back({static_cast<std::uint32_t>(index), block.value});
  return true;
}

std::span<const BlockId> Residency::load() {
  lost_.clear();
  if (misses_.empty()) {
    return lost_;
  }
  const Clock::TimePoint start = clock_.now();
  counters_.demand_misses += static_cast<std::int64_t>(misses_.size());
  std::ranges::sort(misses_);
  exhausted_.assign(rows_.size(), false);
  reads_.clear();
  for (std::size_t first = 0; first < misses_.size();) {
    const std::uint32_t row = misses_[first].row;
    std::size_t end = first;
    while (end < misses_.size() && misses_[end].row == row) {
      ++end;
    }
    submit_reads(row, std::span(misses_).subspan(first, end - first));
    first = end;
  }
  while (reads_in_flight_ > 0) {
    queue_.wait_for(reads_, clock_.now() + kReadDeadline);
    take_results();
  }
  std::ranges::sort(lost_);
  lost_.erase(std::unique(lost_.begin(), lost_.end()), lost_.end());
  counters_.stall_seconds += std::chrono::duration<double>(clock_.now() - start).count();
  return lost_;
}

void Residency::submit_reads(std::uint32_t row_index, std::span<const Miss> misses) {
  Row& row = rows_[row_index];
  acquire(row_index, misses.size(), slots_scratch_);
  const std::vector<SlotId>& slots = slots_scratch_;
  const Clock::TimePoint deadline = clock_.now() + kReadDeadline;
  std::size_t next_slot = 0;
  for (std::size_t i = 0; i < misses.size();) {
    const std::uint32_t first = misses[i].block;
    const std::size_t entry = entry_of(row, first);
    if (!is_home(entry) || next_slot == slots.size()) {
      lose(row, BlockId(first));
      ++i;
      continue;
    }
    Transfer transfer;
    transfer.direction = TransferDirection::kRead;
    transfer.extent = extent_of(row, first);
    transfer.first_block = static_cast<int>((first - row.blocks.first_id) % kExtentBlocks);
    transfer.identity.epoch = now_;
    transfer.identity.layer = row_index;
    transfer.identity.block = first;
    std::size_t run = 0;
    do {
      transfer.memory[run] = blocks_.pool().data(slots[next_slot]);
      ++next_slot;
      ++run;
    } while (i + run < misses.size() && next_slot < slots.size() &&
             misses[i + run].block == first + run && is_home(entry + run) &&
             static_cast<std::size_t>(transfer.first_block) + run < kExtentBlocks);
    transfer.num_blocks = static_cast<int>(run);
    auto id = queue_.submit(transfer, TransferPriority::kDemand, deadline);
    while (!id) {
      queue_.wait_for(std::span(reads_).last(std::min<std::size_t>(reads_.size(), 1)), deadline);
      take_results();
      id = queue_.submit(transfer, TransferPriority::kDemand, deadline);
    }
    reads_.push_back(*id);
    ++reads_in_flight_;
    i += run;
  }
  while (next_slot < slots.size()) {
    blocks_.pool().release(slots[next_slot++]);
  }
}

void Residency::take_read(const TransferResult& result) {
  const Transfer& transfer = result.transfer;
  Row& row = rows_[transfer.identity.layer];
  --reads_in_flight_;
  for (int i = 0; i < transfer.num_blocks; ++i) {
    const SlotId slot = slot_of(transfer.memory[static_cast<std::size_t>(i)]);
    const BlockId block(transfer.identity.block + static_cast<std::uint32_t>(i));
    if (result.ok()) {
      blocks_.put_slot(block, entry_of(row, block.value), slot);
      set_clean(row, block, true);
      continue;
    }
    if (result.memory_in_use) {
      loose_.insert(slot.value);
    } else {
      blocks_.pool().release(slot);
    }
    lose(row, block);
  }
}

void Residency::lose(Row& row, BlockId block) {
  const std::size_t entry = entry_of(row, block.value);
  ++counters_.blocks_lost;
  lost_blocks_.insert(block.value);
  lost_.push_back(block);
  if (std::exchange(state_[entry], std::uint8_t{0}) != 0) {
    free_extent_if_unused(row, block.value);
  }
  blocks_.put_slot(block, entry, hole_);
  holes_.emplace_back(entry, block.value);
}

void Residency::end_step() {
  for (const auto& [entry, block] : holes_) {
    blocks_.take_slot(BlockId(block), entry);
  }
  for (const auto& [entry, block] : std::exchange(holes_, {})) {
    blocks_.forget_content(BlockId(block));
  }
}

void Residency::acquire(std::size_t row_index, std::size_t count, std::vector<SlotId>& out) {
  BlockPool& pool = blocks_.pool();
  const auto wanted = static_cast<std::int64_t>(count);
  bool has_settled = false;
  while (pool.num_free() < wanted) {
    const std::int64_t missing = wanted - pool.num_free();
    std::int64_t total = 0;
    std::size_t largest = rows_.size();
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      total += rows_[r].clean;
      if (!exhausted_[r] && (largest == rows_.size() || rows_[r].clean > rows_[largest].clean)) {
        largest = r;
      }
    }
    const std::int64_t share = total / static_cast<std::int64_t>(rows_.size());
    std::size_t victim = row_index;
    std::int64_t most = missing;
    if (largest < rows_.size() && largest != row_index &&
        rows_[largest].clean > share + share / 4 + 1) {
      victim = largest;
      most = std::min(missing, rows_[largest].clean - share);
    } else if (exhausted_[row_index]) {
      victim = largest;
    }
    if (victim == rows_.size()) {
      if (has_settled || writes_in_flight_ == 0) {
        break;
      }
      settle();
      has_settled = true;
      exhausted_.assign(rows_.size(), false);
      continue;
    }
    exhausted_[victim] = evict_from(rows_[victim], most) < most;
  }
  out.resize(static_cast<std::size_t>(std::min(wanted, pool.num_free())));
  KAREZ_CHECK(pool.allocate(out), "the pool has fewer free slots than it said");
}

std::int64_t Residency::evict_from(Row& row, std::int64_t count) {
  ages_.clear();
  const std::size_t end = row.blocks.first_entry + blocks_.high_water(row.blocks.group);
  for (std::size_t entry = row.blocks.first_entry; entry < end; ++entry) {
    if (state_[entry] == kHome && stamp_[entry] != now_ && !blocks_.slot_at(entry).is_none()) {
      ages_.push_back({stamp_[entry], row.blocks.first_id + static_cast<std::uint32_t>(
                                                                entry - row.blocks.first_entry)});
    }
  }
  const auto taken =
      static_cast<std::size_t>(std::min(count, static_cast<std::int64_t>(ages_.size())));
  if (taken < ages_.size()) {
    std::ranges::nth_element(ages_, ages_.begin() + static_cast<std::ptrdiff_t>(taken));
  }
  for (std::size_t i = 0; i < taken; ++i) {
    const BlockId block(ages_[i].block);
    set_clean(row, block, false);
    blocks_.pool().release(blocks_.take_slot(block, entry_of(row, block.value)));
  }
  counters_.evictions += static_cast<std::int64_t>(taken);
  return static_cast<std::int64_t>(taken);
}

void Residency::make_room(std::int64_t slots) {
  BlockPool& pool = blocks_.pool();
  std::int64_t clean = 0;
  std::int64_t most = 0;
  const auto count = [&] {
    clean = most = 0;
    for (const Row& row : rows_) {
      clean += row.clean;
      most = std::max(most, row.clean);
    }
  };
  count();
  if (pool.num_free() + clean < slots && writes_in_flight_ > 0) {
    settle();
    count();
  }
  if (pool.num_free() >= slots) {
    return;
  }
  ++now_;
  // A bit more than is asked for: rows are scanned as a whole each time.
  const std::int64_t missing = std::min(clean, slots - pool.num_free() + pool.num_slots() / 128);
  // Rows are cut down to one level, so that all keep their share.
  std::int64_t low = 0;
  std::int64_t high = most;
  while (high - low > 1) {
    const std::int64_t level = low + (high - low) / 2;
    std::int64_t above = 0;
    for (const Row& row : rows_) {
      above += std::max<std::int64_t>(0, row.clean - level);
    }
    (above >= missing ? low : high) = level;
  }
  std::int64_t left = missing;
  for (Row& row : rows_) {
    if (row.clean > low && left > 0) {
      left -= evict_from(row, std::min(left, row.clean - low));
    }
  }
}

}  // namespace karez
