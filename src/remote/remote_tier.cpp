#include "remote/remote_tier.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/check.h"

namespace karez {

RemoteTier::RemoteTier(std::unique_ptr<Tier> local, std::shared_ptr<PeerPool> pool,
                       const RemoteTierOptions& options)
    : local_(std::move(local)), pool_(std::move(pool)), options_(options) {
  KAREZ_CHECK(local_ != nullptr && pool_ != nullptr, "there are a local tier and a pool");
  KAREZ_CHECK(local_->block_bytes() == pool_->config().block_bytes,
              "blocks of peers are as large as those at home");
  first_adopted_ = static_cast<std::uint32_t>(local_->capacity().num_extents);
  options_.max_adopted_extents =
      std::min<std::int64_t>(options_.max_adopted_extents, ExtentId::kNoneValue - first_adopted_);
}

RemoteTier::~RemoteTier() {
  // Memory of transfers is lent until here, and the pool lives on.
  pool_->cancel_reads();
  collect();
}

RemoteTier::Adopted& RemoteTier::adopted(ExtentId extent) {
  KAREZ_CHECK(extent.value >= first_adopted_ && extent.value - first_adopted_ < adopted_.size(),
              "an adopted extent is one that was adopted");
  return adopted_[extent.value - first_adopted_];
}

std::optional<ExtentId> RemoteTier::adopt_extent(LeaseId lease,
                                                 std::span<const RemoteBlock> blocks) {
  KAREZ_CHECK(blocks.size() <= kExtentBlocks, "an extent has four blocks");
  ExtentId id;
  if (!free_ids_.empty()) {
    id = free_ids_.back();
    free_ids_.pop_back();
  } else if (static_cast<std::int64_t>(adopted_.size()) < options_.max_adopted_extents) {
    id = ExtentId(first_adopted_ + static_cast<std::uint32_t>(adopted_.size()));
    adopted_.emplace_back();
  } else {
    return std::nullopt;
  }
  Adopted& made = adopted(id);
  made = {};
  made.lease = lease;
  made.allocated = true;
  std::copy(blocks.begin(), blocks.end(), made.blocks.begin());
  ++adopted_count_;
  return id;
}

void RemoteTier::free_extent(ExtentId extent) {
  if (!is_adopted(extent)) {
    local_->free_extent(extent);
    return;
  }
  Adopted& freed = adopted(extent);
  KAREZ_CHECK(freed.allocated, "an extent is freed once");
  freed.allocated = false;
  --adopted_count_;
  if (freed.in_flight == 0) {
    free_ids_.push_back(extent);
  }
}

std::size_t RemoteTier::submit(std::span<const Transfer> transfers) {
  const TierCapacity now = capacity();
  const auto room = static_cast<std::size_t>(std::max(now.max_in_flight - now.in_flight, 0));
  const std::span<const Transfer> taken = transfers.first(std::min(room, transfers.size()));
  batch_.clear();
  std::size_t first = 0;
  while (first < taken.size()) {
    if (is_adopted(taken[first].extent)) {
      take(taken[first]);
      ++first;
      continue;
    }
    // Those of the local tier in one call, as far as the next adopted one.
    std::size_t end = first + 1;
    while (end < taken.size() && !is_adopted(taken[end].extent)) {
      ++end;
    }
    const std::size_t count = local_->submit(taken.subspan(first, end - first));
    first += count;
    if (first < end) {
      break;
    }
  }
  if (!batch_.empty()) {
    pool_->read(batch_);
  }
  return first;
}

void RemoteTier::take(const Transfer& transfer) {
  Adopted& from = adopted(transfer.extent);
  KAREZ_CHECK(from.allocated, "a transfer's extent is allocated");
  KAREZ_CHECK(transfer.first_block >= 0 && transfer.num_blocks >= 1 &&
                  transfer.num_blocks <= kExtentBlocks - transfer.first_block,
              "a transfer stays in its extent");
  if (transfer.direction == TransferDirection::kWrite) {
    finished_.push_back({transfer, TransferStatus::kIoError, EROFS, false});
    return;
  }
  RemoteRead read;
  read.ticket = ++last_ticket_;
  read.lease = from.lease;
  read.num_blocks = transfer.num_blocks;
  for (int i = 0; i < transfer.num_blocks; ++i) {
    const auto at = static_cast<std::size_t>(i);
    read.blocks[at] = from.blocks[static_cast<std::size_t>(transfer.first_block + i)];
    read.memory[at] = transfer.memory[at];
  }
  const bool is_absent = std::any_of(read.blocks.begin(), read.blocks.begin() + read.num_blocks,
                                     [](const RemoteBlock& block) { return block.is_absent(); });
  if (is_absent) {
    finished_.push_back({transfer, TransferStatus::kChecksumMismatch});
    return;
  }
  ++from.in_flight;
  reading_.emplace(read.ticket, transfer);
  batch_.push_back(read);
}

void RemoteTier::collect() {
  read_results_.clear();
  pool_->take_reads(read_results_);
  for (const RemoteReadResult& result : read_results_) {
    const auto found = reading_.find(result.ticket);
    KAREZ_CHECK(found != reading_.end(), "the pool reports what was read through this tier");
    const Transfer transfer = found->second;
    reading_.erase(found);
    Adopted& from = adopted(transfer.extent);
    --from.in_flight;
    if (!from.allocated && from.in_flight == 0) {
      free_ids_.push_back(transfer.extent);
    }
    finished_.push_back(
        {transfer, result.status, result.status == TransferStatus::kIoError ? EIO : 0, false});
  }
}

void RemoteTier::poll(std::vector<TransferResult>& results) {
  local_->poll(results);
  if (!reading_.empty()) {
    pool_->poll();
    collect();
  }
  results.insert(results.end(), finished_.begin(), finished_.end());
  finished_.clear();
}

void RemoteTier::wait_until(Clock::TimePoint time) {
  if (!finished_.empty()) {
    return;
  }
  if (reading_.empty()) {
    local_->wait_until(time);
    return;
  }
  const bool local_is_idle = local_->capacity().in_flight == 0;
  pool_->wait_until(local_is_idle ? time : std::min(time, pool_->now() + kTurn));
}

TierCapacity RemoteTier::capacity() const {
  TierCapacity capacity = local_->capacity();
  capacity.num_foreign_extents = options_.max_adopted_extents;
  capacity.in_flight += static_cast<int>(reading_.size() + finished_.size());
  capacity.metadata_bytes += static_cast<std::int64_t>(adopted_.size() * sizeof(Adopted) +
                                                       free_ids_.capacity() * sizeof(ExtentId));
  return capacity;
}

std::string RemoteTier::describe() const {
  return fmt::format("{}, and blocks of peers", local_->describe());
}

}  // namespace karez
