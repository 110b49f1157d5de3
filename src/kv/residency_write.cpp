// The way home: full blocks are written in the background, extents of neighbours at a time.
#include <algorithm>
#include <chrono>

#include "base/check.h"
#include "kv/residency.h"

namespace karez {

namespace {

constexpr std::chrono::seconds kPauseAfterFailure{1};
constexpr std::chrono::seconds kSettleLimit{30};

bool is_from_medium(TransferStatus status) {
  return status != TransferStatus::kConflict && status != TransferStatus::kDeadlinePassed &&
         status != TransferStatus::kCancelled;
}

}  // namespace

void Residency::write_home(BlockId block) {
  if (wants_write_[block.value] || is_lost(block)) {
    return;
  }
  if (std::ranges::any_of(rows_of(block),
                          [&](const Row& row) { return is_fast_only(row, block.value); })) {
    wants_write_[block.value] = true;
    to_write_.push_back(block.value);
  }
}

void Residency::advance() {
  take_results();
  pump_writes();
}

void Residency::settle() { wait_for_transfers(/*submits_writes=*/true); }

void Residency::wait_for_transfers(bool submits_writes) {
  const Clock::TimePoint limit = clock_.now() + kSettleLimit;
  take_results();
  while (true) {
    if (submits_writes) {
      pump_writes();
    }
    if (writes_in_flight_ == 0 && fetching_blocks_ == 0) {
      const Clock::TimePoint now = clock_.now();
      if (!submits_writes || has_paused_ || now >= std::min(limit, writes_resume_) ||
          !has_writes_waiting()) {
        return;
      }
      has_paused_ = true;  // a medium that goes on failing is not waited for again
      clock_.sleep_until(writes_resume_);
      continue;
    }
    if (is_hung_ || clock_.now() >= limit) {
      is_hung_ = true;
      return;
    }
    queue_.drain(limit);
    take_results();
  }
}

bool Residency::has_writes_waiting() {
  while (!to_write_.empty() && !wants_write_[to_write_.front()]) {
    to_write_.pop_front();
  }
  return !to_write_.empty();
}

void Residency::pump_writes() {
  if (clock_.now() < writes_resume_) {
    return;
  }
  while (has_writes_waiting()) {
    const std::uint32_t first = to_write_.front();
    const std::span<Row> rows = rows_of(BlockId(first));
    const std::uint32_t index = first - rows[0].blocks.first_id;
    // Neighbours that come next in the queue and lie in the same extent.
    std::uint32_t count = 1;
    while (count < to_write_.size() && (index + count) % kExtentBlocks != 0 &&
           to_write_[count] == first + count && wants_write_[first + count]) {
      ++count;
    }
    for (Row& row : rows) {
      if (!submit_write(row, first, count)) {
        return;  // the rest of these blocks is tried again next time
      }
    }
    for (std::uint32_t i = 0; i < count; ++i) {
      wants_write_[to_write_.front()] = false;
      to_write_.pop_front();
    }
  }
}

// False: no room, at home or in the queue.
bool Residency::submit_write(Row& row, std::uint32_t first, std::uint32_t count) {
  std::uint32_t i = 0;
  while (i < count) {
    if (!is_fast_only(row, first + i)) {
      ++i;
      continue;
    }
    ExtentId& extent = extent_of(row, first);
    while (extent.is_none() &&
           is_fast_only(row, first + i)) {  // what is dropped may be this very block
      const auto room = queue_.allocate_extent();
      if (room) {
        extent = *room;
      } else if (!blocks_.drop_oldest_idle()) {
        return false;
      }
    }
    if (!is_fast_only(row, first + i)) {
      continue;
    }
    Transfer transfer;
    transfer.direction = TransferDirection::kWrite;
    transfer.extent = extent;
    set_identity(transfer, row, first + i);
    std::uint32_t run = 0;
    while (i + run < count && is_fast_only(row, first + i + run)) {
      transfer.memory[run] = blocks_.pool().data(blocks_.slot_at(entry_of(row, first + i + run)));
      ++run;
    }
    transfer.num_blocks = static_cast<int>(run);
    auto id = queue_.submit(transfer, TransferPriority::kWriteBack);
    if (!id) {
      take_results();
      if (extent != transfer.extent) {
        continue;  // the write of a neighbour has failed, and was the last to use it
      }
      id = queue_.submit(transfer, TransferPriority::kWriteBack);
    }
    if (!id) {
      free_extent_if_unused(row, first);
      return false;
    }
    for (std::uint32_t j = 0; j < run; ++j) {
      state_[entry_of(row, first + i + j)] = kWriting;
      blocks_.add_busy(BlockId(first + i + j), 1);
    }
    writes_in_flight_ += run;
    i += run;
  }
  return true;
}

void Residency::take_results() {
  results_.clear();
  queue_.poll(results_);
  std::int64_t bytes = 0;
  for (const TransferResult& result : results_) {
    bytes += result.ok() ? bytes_of(result.transfer.num_blocks) : 0;
    is_hung_ = is_hung_ && !is_from_medium(result.status);
    if (result.transfer.direction == TransferDirection::kWrite) {
      take_write(result);
    } else if (result.transfer.identity.owner == kFetchOwner) {
      take_fetch(result);
    } else {
      take_read(result);
    }
  }
  link_.note(clock_.now(), bytes, static_cast<int>(results_.size()), queue_.counters().in_flight);
  released_.clear();
  queue_.take_released(released_);
  is_hung_ = is_hung_ && released_.empty();
  for (const Transfer& transfer : released_) {
    for (int i = 0; i < transfer.num_blocks; ++i) {
      const SlotId slot = slot_of(transfer.memory[static_cast<std::size_t>(i)]);
      if (loose_.erase(slot.value) > 0) {
        blocks_.pool().release(slot);
      }
    }
  }
}

void Residency::take_write(const TransferResult& result) {
  const Transfer& transfer = result.transfer;
  Row& row = row_of(transfer.identity);
  bool is_pausing = false;
  for (int i = 0; i < transfer.num_blocks; ++i) {
    const SlotId slot = slot_of(transfer.memory[static_cast<std::size_t>(i)]);
    const BlockId block(transfer.identity.block + static_cast<std::uint32_t>(i));
    --writes_in_flight_;
    if (loose_.contains(slot.value)) {  // the block was freed meanwhile
      if (!result.memory_in_use) {
        loose_.erase(slot.value);
        blocks_.pool().release(slot);
      }
      continue;
    }
    const std::size_t entry = entry_of(row, block.value);
    KAREZ_CHECK(blocks_.slot_at(entry) == slot && state_[entry] == kWriting,
                "a write of a block that has moved");
    blocks_.add_busy(block, -1);
    if (result.ok()) {
      has_paused_ = false;
      state_[entry] = kHome;
      // Recent, but no reason for the layer at hand not to take its slot.
      stamp_[entry] = std::max(stamp_[entry], now_ - 1);
      set_clean(row, block, true);
      continue;
    }
    state_[entry] = 0;
    // Not the medium's fault: the place was still in use for the block that had this id before.
    const bool is_late =
        result.status == TransferStatus::kConflict || result.status == TransferStatus::kCancelled;
    counters_.write_failures += is_late ? 0 : 1;
    is_pausing = is_pausing || result.status == TransferStatus::kIoError ||
                 result.status == TransferStatus::kNoSpace ||
                 result.status == TransferStatus::kShort;
    free_extent_if_unused(row, block.value);
    write_home(block);
  }
  if (is_pausing) {
    writes_resume_ = clock_.now() + kPauseAfterFailure;
  }
}

}  // namespace karez
