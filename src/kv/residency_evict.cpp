// Who gives up slots, by the rule at the top of residency.h.
#include <algorithm>

#include "base/check.h"
#include "kv/residency.h"

namespace karez {

namespace {

// For loads: all that the call at hand has not named.
constexpr std::uint32_t kAnyTime = 0;
// A row gives for others when it is above its share by so many blocks: it costs a scan of it.
constexpr std::int64_t kSlackBlocks = 8;

}  // namespace

Residency::Totals Residency::totals() const {
  Totals totals;
  for (const Row& row : rows_) {
    totals.clean += row.clean;
    totals.needed += row.needed;
    totals.entering += static_cast<double>(row.entering);
  }
  return totals;
}

std::int64_t Residency::share_of(const Row& row, const Totals& totals, std::size_t num_rows) {
  const auto rows = static_cast<double>(num_rows);
  const auto clean = static_cast<double>(totals.clean);
  const auto needed = static_cast<double>(totals.needed);
  if (clean <= needed) {
    return static_cast<std::int64_t>(clean * row.needed / needed);
  }
  const double part =
      totals.entering > 0 ? static_cast<double>(row.entering) / totals.entering : 1 / rows;
  return row.needed + static_cast<std::int64_t>((clean - needed) * part);
}

void Residency::acquire(std::size_t row_index, std::size_t count, TransferPriority priority,
                        std::vector<SlotId>& out) {
  BlockPool& pool = blocks_.pool();
  const auto wanted = static_cast<std::int64_t>(count);
  const bool is_demand = priority == TransferPriority::kDemand;
  bool has_settled = false;
  const Totals all = totals();
  while (pool.num_free() < wanted) {
    const std::int64_t missing = wanted - pool.num_free();
    std::size_t largest = rows_.size();  // the row that is most above its share
    std::int64_t largest_surplus = 0;
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      const std::int64_t surplus = rows_[r].clean - share_of(rows_[r], all, rows_.size());
      if (!exhausted_[r] && (largest == rows_.size() || surplus > largest_surplus)) {
        largest = r;
        largest_surplus = surplus;
      }
    }
    std::size_t victim = row_index;
    std::int64_t most = missing;
    if (largest < rows_.size() && largest != row_index && largest_surplus > kSlackBlocks) {
      victim = largest;
      most = std::min(missing, largest_surplus);
    } else if (exhausted_[row_index]) {
      victim = is_demand || largest_surplus > 0 ? largest : rows_.size();
    }
    if (victim == rows_.size()) {
      // What prefetches hold is theirs who need it now.
      if (is_demand && num_fetching_slots() > late_blocks_) {
        wait_for_fetches();
      } else if (is_demand && !has_settled &&
                 (writes_in_flight_ > 0 || !to_write_.empty() || fetching_blocks_ > 0)) {
        settle();
        has_settled = true;
      } else {
        break;
      }
      exhausted_.assign(rows_.size(), false);
      continue;
    }
    // A guess takes nothing that the row's last call has needed: that is the best guess of all.
    const std::uint32_t before = is_demand                            ? kAnyTime
                                 : rows_[victim].begun >= step_start_ ? step_start_
                                                                      : previous_step_start_;
    exhausted_[victim] = evict_from(rows_[victim], most, before) < most;
  }
  out.resize(static_cast<std::size_t>(std::min(wanted, pool.num_free())));
  KAREZ_CHECK(pool.allocate(out), "the pool has fewer free slots than it said");
}

bool Residency::may_go(const Row& row, std::size_t entry, std::uint32_t before) const {
  const std::uint8_t state = state_[entry];
  if ((state & (kHome | kWriting | kReading)) != kHome || blocks_.slot_at(entry).is_none()) {
    return false;
  }
  const bool is_guess = (state & kGuess) != 0;
  if (before == kAnyTime) {
    return is_guess || stamp_[entry] != now_;
  }
  // A guess that has had its chance: its layer has run since.
  return stamp_[entry] < before && (!is_guess || stamp_[entry] < row.begun);
}

std::int64_t Residency::evict_from(Row& row, std::int64_t count, std::uint32_t before) {
  ages_.clear();
  const std::size_t end = row.blocks.first_entry + blocks_.high_water(row.blocks.group);
  for (std::size_t entry = row.blocks.first_entry; entry < end; ++entry) {
    if (may_go(row, entry, before)) {
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
    const std::size_t entry = entry_of(row, block.value);
    note_wasted(entry);
    state_[entry] = kHome;
    set_clean(row, block, false);
    blocks_.pool().release(blocks_.take_slot(block, entry));
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
  if (pool.num_free() + clean < slots && (writes_in_flight_ > 0 || fetching_blocks_ > 0)) {
    // Nothing is submitted: slots of idle blocks that allocate() counts on would not be free soon.
    wait_for_transfers(/*submits_writes=*/false);
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
      left -= evict_from(row, std::min(left, row.clean - low), kAnyTime);
    }
  }
}

}  // namespace karez
