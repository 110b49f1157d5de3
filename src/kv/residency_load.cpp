// Into the fast tier: what a layer needs is read from home, into slots that others give up.
#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "kv/residency.h"

namespace karez {

namespace {

constexpr std::chrono::seconds kReadDeadline{10};
// Beyond it calls are renumbered: between two steps there are far fewer than are left then.
constexpr std::uint32_t kLastCall = std::uint32_t{1} << 31U;
// Blocks that were needed longer ago than so many calls are then all of the same age.
constexpr std::uint32_t kCallsKept = std::uint32_t{1} << 20U;

}  // namespace

void Residency::begin_step() {
  if (now_ > kLastCall) {
    renumber_calls();
  }
  previous_step_start_ = step_start_;
  step_start_ = ++now_;
  counters_.prefetch.dropped += static_cast<std::int64_t>(hints_.size());
  for (const Hint& hint : hints_) {
    std::uint8_t& state = state_[entry_of(rows_[hint.row], hint.block)];
    state = static_cast<std::uint8_t>(state & ~kHinted);
  }
  hints_.clear();
  fetch_bytes_left_ = fetch_cap();
  step_begin_ = clock_.now();
}

void Residency::renumber_calls() {
  const std::uint32_t base = now_ - kCallsKept;
  const auto renumber = [base](std::uint32_t& call) { call = call > base ? call - base : 0; };
  std::ranges::for_each(stamp_, renumber);
  for (Row& row : rows_) {
    renumber(row.begun);
  }
  renumber(now_);
  renumber(step_start_);
  renumber(previous_step_start_);
}

void Residency::begin_call() {
  ++now_;
  misses_.clear();
  layer_is_read_ = false;
  if (late_blocks_ > 0) {  // named and not loaded
    for (auto& [entry, fetch] : fetches_) {
      fetch.is_needed = false;
    }
    late_blocks_ = 0;
  }
  late_.clear();
}

void Residency::begin_layer(int layer) {
  if (fetching_blocks_ > 0) {
    take_results();
  }
  begin_call();
  layer_first_row_ = first_row_of_layer_[static_cast<std::size_t>(layer)];
  for (std::size_t r = layer_first_row_; r < rows_.size() && rows_[r].blocks.layer == layer; ++r) {
    rows_[r].begun = now_;
    rows_[r].needed = 0;
  }
}

bool Residency::need(int kv_head, BlockId block) {
  const std::size_t index = layer_first_row_ + static_cast<std::size_t>(kv_head);
  const std::size_t entry = entry_of(rows_[index], block.value);
  std::uint8_t& state = state_[entry];
  if (stamp_[entry] == now_ && (state & kGuess) == 0) {
    return false;
  }
  stamp_[entry] = now_;
  ++counters_.blocks_needed;
  ++rows_[index].needed;
  layer_is_read_ = true;
  if ((state & kFetched) != 0) {
    ++source_counts(entry).useful;
    ++rows_[index].entered;
    state = kHome;
  }
  state = static_cast<std::uint8_t>(state & ~kHinted);
  if (!blocks_.slot_at(entry).is_none()) {
    return false;
  }
  ++rows_[index].entered;
  if ((state & kReading) != 0) {
    Fetch& fetch = fetches_.at(entry);
    fetch.is_needed = true;
    late_.push_back(fetch.transfer);
    ++late_blocks_;
    return true;
  }
  misses_.push_back({static_cast<std::uint32_t>(index), block.value});
  return true;
}

std::span<const BlockId> Residency::load() {
  lost_.clear();
  const bool is_ready = misses_.empty() && late_.empty();
  if (std::exchange(layer_is_read_, false)) {
    note_entered();
    ++counters_.prefetch.layers_read;
    counters_.prefetch.layers_ready += is_ready ? 1 : 0;
  }
  if (is_ready) {
    return lost_;
  }
  const Clock::TimePoint start = clock_.now();
  counters_.demand_misses += static_cast<std::int64_t>(misses_.size() + late_.size());
  exhausted_.assign(rows_.size(), false);
  reads_.clear();
  for (const TransferId id : late_) {
    queue_.promote(id);
    reads_.push_back(id);
  }
  submit_misses();
  wait_for_reads();
  late_.clear();
  if (!failed_late_.empty()) {
    misses_.swap(failed_late_);
    failed_late_.clear();
    submit_misses();
    wait_for_reads();
  }
  std::ranges::sort(lost_);
  lost_.erase(std::unique(lost_.begin(), lost_.end()), lost_.end());
  const Clock::TimePoint end = clock_.now();
  counters_.stall_seconds += std::chrono::duration<double>(end - start).count();
  if (trace_ != nullptr) {
    trace_->add({.name = "wait",
                 .layer = rows_[layer_first_row_].blocks.layer,
                 .begin = start,
                 .end = end});
  }
  return lost_;
}

void Residency::note_entered() {
  constexpr float kWeight = 0.25F;
  const int layer = rows_[layer_first_row_].blocks.layer;
  for (std::size_t r = layer_first_row_; r < rows_.size() && rows_[r].blocks.layer == layer; ++r) {
    const int entered = std::exchange(rows_[r].entered, 0);
    rows_[r].entering += kWeight * (static_cast<float>(entered) - rows_[r].entering);
  }
}

void Residency::submit_misses() {
  std::ranges::sort(misses_);
  for (std::size_t first = 0; first < misses_.size();) {
    const std::uint32_t row = misses_[first].row;
    std::size_t end = first;
    while (end < misses_.size() && misses_[end].row == row) {
      ++end;
    }
    submit_reads(row, std::span(misses_).subspan(first, end - first));
    first = end;
  }
}

void Residency::wait_for_reads() {
  while (reads_in_flight_ > 0 || late_blocks_ > 0) {
    queue_.wait_for(reads_, clock_.now() + kReadDeadline);
    take_results();
  }
}

void Residency::submit_reads(std::uint32_t row_index, std::span<const Miss> misses) {
  Row& row = rows_[row_index];
  acquire(row_index, misses.size(), TransferPriority::kDemand, slots_scratch_);
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
    set_identity(transfer, row, first);
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
  Row& row = row_of(transfer.identity);
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
  if (step_begin_) {
    constexpr double kWeight = 0.25;
    const double seconds = std::chrono::duration<double>(clock_.now() - *step_begin_).count();
    step_seconds_ += (step_seconds_ == 0 ? 1 : kWeight) * (seconds - step_seconds_);
    step_begin_.reset();
  }
  for (const auto& [entry, block] : holes_) {
    blocks_.take_slot(BlockId(block), entry);
  }
  for (const auto& [entry, block] : std::exchange(holes_, {})) {
    blocks_.forget_content(BlockId(block));
  }
}

}  // namespace karez
