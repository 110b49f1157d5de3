// Construction, forgetting, figures. Writes are in residency_write.cpp, reads in
// residency_load.cpp and residency_prefetch.cpp, who gives up slots in residency_evict.cpp.
#include "kv/residency.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"

namespace karez {

namespace {

constexpr TransferQueueOptions kQueueOptions{
    .max_in_flight = 512, .max_queued = 4096, .max_results = 16384};

}  // namespace

Residency::Residency(LogicalBlocks& blocks, std::unique_ptr<Tier> home, const Clock& clock,
                     std::uint32_t first_call)
    : blocks_(blocks),
      clock_(clock),
      queue_(std::move(home), kQueueOptions, clock),
      now_(first_call),
      step_start_(first_call + 1),
      previous_step_start_(first_call) {
  std::size_t num_entries = 0;
  std::size_t num_extents = 0;
  for (const BlockRow& row : blocks.rows()) {
    const auto layer = static_cast<std::size_t>(row.layer);
    if (row.kv_head == 0) {
      first_row_of_layer_.resize(std::max(first_row_of_layer_.size(), layer + 1));
      first_row_of_layer_[layer] = rows_.size();
    }
    rows_.push_back({row, num_extents, 0, 0});
    num_entries = std::max(num_entries, row.first_entry + row.size);
    num_extents += (row.size + kExtentBlocks - 1) / kExtentBlocks;
  }
  state_.resize(num_entries);
  stamp_.resize(num_entries);
  extents_.resize(num_extents);
  wants_write_.resize(blocks.num_ids());
  exhausted_.resize(rows_.size());
  KAREZ_CHECK(blocks.pool().allocate(std::span(&hole_, 1)), "the pool is new and has a slot");
  writes_resume_ = clock.now();
}

// The tier may still read the slots of writes; the queue's destructor waits for it.
Residency::~Residency() = default;

void Residency::set_trace(TraceWriter* trace) {
  trace_ = trace;
  queue_.set_trace(trace);
}

std::span<Residency::Row> Residency::rows_of(BlockId block) {
  std::size_t first = 0;
  while (block.value - rows_[first].blocks.first_id >= rows_[first].blocks.size) {  // also if below
    ++first;
  }
  std::size_t end = first;
  while (end < rows_.size() && rows_[end].blocks.group == rows_[first].blocks.group) {
    ++end;
  }
  return std::span(rows_).subspan(first, end - first);
}

ExtentId& Residency::extent_of(const Row& row, std::uint32_t block) {
  return extents_[row.first_extent + (block - row.blocks.first_id) / kExtentBlocks];
}

std::int64_t Residency::bytes_of(std::int64_t blocks) const {
  return blocks * static_cast<std::int64_t>(std::as_const(blocks_).pool().slot_bytes());
}

PrefetchStats::BySource& Residency::source_counts(std::size_t entry) {
  return counters_.prefetch.of(static_cast<LookaheadSource>(state_[entry] >> kSourceShift));
}

SlotId Residency::slot_of(const std::byte* memory) const {
  const BlockPool& pool = std::as_const(blocks_).pool();
  return SlotId(static_cast<std::uint32_t>(static_cast<std::size_t>(memory - pool.base()) /
                                           pool.slot_bytes()));
}

void Residency::set_identity(Transfer& transfer, const Row& row, std::uint32_t block) const {
  transfer.first_block = static_cast<int>((block - row.blocks.first_id) % kExtentBlocks);
  transfer.identity.epoch = now_;
  transfer.identity.layer = static_cast<std::uint32_t>(row.blocks.layer);
  transfer.identity.head = static_cast<std::uint32_t>(row.blocks.kv_head);
  transfer.identity.block = block;
}

void Residency::set_clean(Row& row, BlockId block, bool clean) {
  row.clean += clean ? 1 : -1;
  blocks_.add_clean(block, clean ? 1 : -1);
}

void Residency::forget(BlockId block) {
  wants_write_[block.value] = false;
  lost_blocks_.erase(block.value);
  for (Row& row : rows_of(block)) {
    const std::size_t entry = entry_of(row, block.value);
    abandon_fetch(entry);
    note_wasted(entry);
    const std::uint8_t state = std::exchange(state_[entry], std::uint8_t{0});
    if ((state & kWriting) != 0) {
      blocks_.add_busy(block, -1);
      loose_.insert(blocks_.take_slot(block, entry).value);
    } else if ((state & kHome) != 0 && !blocks_.slot_at(entry).is_none()) {
      set_clean(row, block, false);
    }
    if (state != 0) {
      free_extent_if_unused(row, block.value);
    }
  }
}

void Residency::free_extent_if_unused(Row& row, std::uint32_t block) {
  const std::uint32_t index = block - row.blocks.first_id;
  const std::size_t first = index - index % kExtentBlocks;
  const std::size_t end = std::min(first + kExtentBlocks, row.blocks.size);
  for (std::size_t i = first; i < end; ++i) {
    if (state_[row.blocks.first_entry + i] != 0) {
      return;
    }
  }
  ExtentId& extent = extent_of(row, block);
  if (!extent.is_none()) {
    queue_.free_extent(std::exchange(extent, ExtentId::none()));
  }
}

std::optional<HomePlace> Residency::place_at_home(int layer, int kv_head, BlockId block) const {
  const Row& row = row_at(layer, kv_head);
  if (!is_home(entry_of(row, block.value))) {
    return std::nullopt;
  }
  const std::uint32_t index = block.value - row.blocks.first_id;
  return HomePlace{extents_[row.first_extent + index / kExtentBlocks],
                   static_cast<int>(index % kExtentBlocks)};
}

void Residency::adopt(int layer, int kv_head, BlockId first, ExtentId extent) {
  const Row& row = row_at(layer, kv_head);
  KAREZ_CHECK((first.value - row.blocks.first_id) % kExtentBlocks == 0, "the blocks of one extent");
  ExtentId& place = extent_of(row, first.value);
  KAREZ_CHECK(place.is_none(), "blocks that were free have no extent");
  place = extent;
  for (std::uint32_t i = 0; i < kExtentBlocks; ++i) {
    const std::size_t entry = entry_of(row, first.value + i);
    state_[entry] = kHome;
    stamp_[entry] = 0;  // of the block that had this id before
  }
}

bool Residency::is_any_home(BlockId block) const {
  return std::ranges::any_of(
      rows_of(block), [&](const Row& row) { return state_[entry_of(row, block.value)] != 0; });
}

bool Residency::was_read(int layer, int kv_head, BlockId block) const {
  const std::size_t entry = entry_of(row_at(layer, kv_head), block.value);
  return stamp_[entry] >= step_start_ && (state_[entry] & kGuess) == 0;
}

std::int64_t Residency::num_loose_slots() const {
  return static_cast<std::int64_t>(loose_.size()) + num_fetching_slots() + 1;
}

bool Residency::reopen(BlockId block) {
  wants_write_[block.value] = false;
  if (is_lost(block)) {
    return false;
  }
  if (!is_any_home(block)) {
    return true;
  }
  const std::span<Row> rows = rows_of(block);
  for (Row& row : rows) {
    abandon_fetch(entry_of(row, block.value));
  }
  wait_for_transfers(/*submits_writes=*/false);
  wants_write_[block.value] = false;  // a write that failed asks again
  if (std::ranges::any_of(rows,
                          [&](const Row& row) { return is_writing(entry_of(row, block.value)); })) {
    return false;  // the tier hangs
  }
  begin_call();
  for (Row& row : rows) {
    const std::size_t entry = entry_of(row, block.value);
    note_wasted(entry);
    state_[entry] = static_cast<std::uint8_t>(state_[entry] & ~kGuess);
    stamp_[entry] = now_;
    if (blocks_.slot_at(entry).is_none()) {
      misses_.push_back({static_cast<std::uint32_t>(&row - rows_.data()), block.value});
    }
  }
  const bool found = load().empty();
  end_step();
  if (!found) {
    return false;
  }
  for (Row& row : rows) {
    const std::size_t entry = entry_of(row, block.value);
    KAREZ_CHECK((state_[entry] & kWriting) == 0, "a write goes on after it was waited for");
    if ((std::exchange(state_[entry], std::uint8_t{0}) & kHome) != 0) {
      set_clean(row, block, false);
      free_extent_if_unused(row, block.value);
    }
  }
  return true;
}

ResidencyStats Residency::stats() const {
  ResidencyStats stats = counters_;
  const TierCapacity capacity = queue_.tier().capacity();
  stats.home_bytes_total = capacity.capacity_bytes();
  stats.home_bytes_used = capacity.used_bytes();
  stats.home_blocks_total = capacity.num_extents * kExtentBlocks;
  for (const Row& row : rows_) {
    stats.blocks_clean += row.clean;
  }
  for (const TransferCounters::ByPriority& counters : queue_.counters().by_priority) {
    stats.bytes_read += counters.bytes_read;
    stats.bytes_written += counters.bytes_written;
  }
  return stats;
}

std::size_t Residency::metadata_bytes() const {
  return state_.capacity() + stamp_.capacity() * sizeof(std::uint32_t) +
         extents_.capacity() * sizeof(ExtentId) + wants_write_.capacity() / 8 +
         rows_.capacity() * sizeof(Row) +
         static_cast<std::size_t>(queue_.tier().capacity().metadata_bytes);
}

}  // namespace karez
