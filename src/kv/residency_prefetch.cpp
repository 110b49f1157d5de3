// Into the fast tier before anybody waits: what hints name is read while the step goes on.
#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "base/check.h"
#include "kv/residency.h"

namespace karez {

namespace {

constexpr std::chrono::seconds kFetchDeadline{10};
// For one prefetch(); beyond it hints are dropped.
constexpr std::size_t kMaxHints = std::size_t{1} << 16U;
constexpr double kLinkShare = 0.8;
// So that a link that looks slow is asked again.
constexpr std::int64_t kLeastBlocks = 16;
// Until something was measured.
constexpr std::int64_t kFirstBlocks = 256;

}  // namespace

std::int64_t Residency::fetch_cap() const {
  if (fetch_cap_bytes_ > 0) {
    return fetch_cap_bytes_;
  }
  if (link_.bytes_per_second() == 0 || step_seconds_ == 0) {
    return bytes_of(kFirstBlocks);
  }
  // Rates of memory and steps of minutes: far below 2^63.
  const double bytes = link_.bytes_per_second() * step_seconds_ * kLinkShare;
  return std::max(static_cast<std::int64_t>(std::min(bytes, 1e15)), bytes_of(kLeastBlocks));
}

float Residency::num_entering(int layer, int kv_head) const {
  const std::size_t first = first_row_of_layer_[static_cast<std::size_t>(layer)];
  return rows_[first + static_cast<std::size_t>(kv_head)].entering;
}

void Residency::hint(int layer, int kv_head, BlockId block, LookaheadSource source) {
  const std::size_t index =
      first_row_of_layer_[static_cast<std::size_t>(layer)] + static_cast<std::size_t>(kv_head);
  const std::size_t entry = entry_of(rows_[index], block.value);
  PrefetchStats& stats = counters_.prefetch;
  ++stats.of(source).predicted;
  std::uint8_t& state = state_[entry];
  if (!blocks_.slot_at(entry).is_none()) {
    ++stats.already_resident;
    if ((state & (kHome | kWriting)) == kHome && stamp_[entry] < step_start_) {
      stamp_[entry] = now_;
      state |= kHinted;
    }
  } else if ((state & (kReading | kHinted)) != 0 || stamp_[entry] == now_) {
    ++stats.already_hinted;  // or named by the call at hand, which will load it
  } else if ((state & kHome) != 0 && hints_.size() < kMaxHints) {
    state |= kHinted;
    hints_.push_back({static_cast<std::uint32_t>(index), block.value, source});
  } else {
    ++stats.dropped;
  }
}

void Residency::prefetch() {
  if (hints_.empty()) {
    return;
  }
  const std::int64_t block_bytes = bytes_of(1);
  hints_scratch_.clear();
  for (const Hint& hint : hints_) {
    const std::size_t entry = entry_of(rows_[hint.row], hint.block);
    const bool is_there = (state_[entry] & (kHome | kHinted)) != (kHome | kHinted) ||
                          !blocks_.slot_at(entry).is_none();  // or freed meanwhile
    state_[entry] = static_cast<std::uint8_t>(state_[entry] & ~kHinted);
    if (is_there || fetch_bytes_left_ < block_bytes) {
      ++counters_.prefetch.dropped;
      continue;
    }
    fetch_bytes_left_ -= block_bytes;
    hints_scratch_.push_back(hint);
  }
  hints_.clear();
  exhausted_.assign(rows_.size(), false);
  std::ranges::stable_sort(hints_scratch_, {}, &Hint::row);
  for (std::size_t first = 0; first < hints_scratch_.size();) {
    std::size_t end = first;
    while (end < hints_scratch_.size() && hints_scratch_[end].row == hints_scratch_[first].row) {
      ++end;
    }
    submit_fetches(hints_scratch_[first].row,
                   std::span(hints_scratch_).subspan(first, end - first));
    first = end;
  }
  take_results();  // which hands them to the tier
}

std::int64_t Residency::prefetch_between_steps() {
  fetch_bytes_left_ = std::numeric_limits<std::int64_t>::max() / 2;  // begin_step() sets it anew
  const std::int64_t before = counters_.prefetch.bytes_fetched;
  prefetch();
  return (counters_.prefetch.bytes_fetched - before) / bytes_of(1);
}

void Residency::submit_fetches(std::uint32_t row_index, std::span<Hint> hints) {
  Row& row = rows_[row_index];
  acquire(row_index, hints.size(), TransferPriority::kPrefetch, slots_scratch_);
  const std::vector<SlotId>& slots = slots_scratch_;
  const std::size_t num_wanted = hints.size();
  hints = hints.first(slots.size());
  std::ranges::sort(hints, {}, &Hint::block);
  const Clock::TimePoint deadline = clock_.now() + kFetchDeadline;
  std::size_t i = 0;
  while (i < hints.size()) {
    const std::uint32_t first = hints[i].block;
    Transfer transfer;
    transfer.direction = TransferDirection::kRead;
    transfer.extent = extent_of(row, first);
    set_identity(transfer, row, first);
    transfer.identity.owner = kFetchOwner;
    std::size_t run = 0;
    do {
      transfer.memory[run] = blocks_.pool().data(slots[i + run]);
      ++run;
    } while (i + run < hints.size() && hints[i + run].block == first + run &&
             static_cast<std::size_t>(transfer.first_block) + run < kExtentBlocks);
    transfer.num_blocks = static_cast<int>(run);
    const auto id = queue_.submit(transfer, TransferPriority::kPrefetch, deadline);
    if (!id) {
      break;
    }
    for (const std::size_t end = i + run; i < end; ++i) {
      const std::size_t entry = entry_of(row, hints[i].block);
      state_[entry] = static_cast<std::uint8_t>(
          kHome | kReading | static_cast<unsigned>(hints[i].source) << kSourceShift);
      fetches_.emplace(entry, Fetch{slots[i], *id, false});
      ++source_counts(entry).fetched;
    }
  }
  for (std::size_t left = i; left < slots.size(); ++left) {
    blocks_.pool().release(slots[left]);
  }
  const auto num_fetched = static_cast<std::int64_t>(i);
  const auto num_dropped = static_cast<std::int64_t>(num_wanted) - num_fetched;
  fetching_blocks_ += num_fetched;
  fetch_bytes_left_ += bytes_of(num_dropped);
  counters_.prefetch.bytes_fetched += bytes_of(num_fetched);
  counters_.prefetch.dropped += num_dropped;
}

void Residency::take_fetch(const TransferResult& result) {
  const Transfer& transfer = result.transfer;
  Row& row = row_of(transfer.identity);
  fetching_blocks_ -= transfer.num_blocks;
  for (int i = 0; i < transfer.num_blocks; ++i) {
    const SlotId slot = slot_of(transfer.memory[static_cast<std::size_t>(i)]);
    if (loose_.contains(slot.value)) {  // nobody wants it any more
      if (!result.memory_in_use) {
        loose_.erase(slot.value);
        blocks_.pool().release(slot);
      }
      continue;
    }
    const BlockId block(transfer.identity.block + static_cast<std::uint32_t>(i));
    const std::size_t entry = entry_of(row, block.value);
    const auto found = fetches_.find(entry);
    KAREZ_CHECK(found != fetches_.end() && found->second.slot == slot,
                "a prefetch of a block that has moved");
    const bool is_needed = found->second.is_needed;
    fetches_.erase(found);
    late_blocks_ -= is_needed ? 1 : 0;
    std::uint8_t& state = state_[entry];
    if (result.ok()) {
      blocks_.put_slot(block, entry, slot);
      set_clean(row, block, true);
      if (is_needed) {
        ++source_counts(entry).late;
        state = kHome;
      } else {
        state = static_cast<std::uint8_t>((state & ~kReading) | kFetched);
        stamp_[entry] = now_;
      }
      continue;
    }
    state = kHome;
    ++counters_.prefetch.failed;
    if (result.memory_in_use) {
      loose_.insert(slot.value);
    } else {
      blocks_.pool().release(slot);
    }
    if (is_needed) {
      failed_late_.push_back({static_cast<std::uint32_t>(&row - rows_.data()), block.value});
    }
  }
}

// Its slot is nobody's until the tier gives it back.
void Residency::abandon_fetch(std::size_t entry) {
  if ((state_[entry] & kReading) == 0) {
    return;
  }
  const auto found = fetches_.find(entry);
  late_blocks_ -= found->second.is_needed ? 1 : 0;
  loose_.insert(found->second.slot.value);
  fetches_.erase(found);
  ++source_counts(entry).wasted;
  counters_.prefetch.bytes_wasted += bytes_of(1);
  state_[entry] = kHome;
}

void Residency::wait_for_fetches() {
  std::vector<TransferId> ids;
  for (const auto& [entry, fetch] : fetches_) {
    queue_.promote(fetch.transfer);
    ids.push_back(fetch.transfer);
  }
  // Their deadlines end this.
  while (!queue_.wait_for(ids, clock_.now() + kFetchDeadline)) {
  }
  take_results();
}

// If it was prefetched and nobody has needed it.
void Residency::note_wasted(std::size_t entry) {
  if ((state_[entry] & kFetched) != 0) {
    ++source_counts(entry).wasted;
    counters_.prefetch.bytes_wasted += bytes_of(1);
    state_[entry] = kHome;
  }
}

}  // namespace karez
