// RemoteTier: the local home tier, and beside it extents whose blocks lie with a peer.
//
// An adopted extent takes no room at home, can be read and not written, and is gone once freed.
// Everything else is the local tier's, and goes there unchanged.
// Thread: as Tier; the pool has the same owner thread.
// Owns: the local tier. The pool is shared with those who fetch and release; leases are theirs.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "kv/tier/tier.h"
#include "remote/peer_pool.h"

namespace karez {

struct RemoteTierOptions {
  std::int64_t max_adopted_extents = std::int64_t{1} << 24U;
};

class RemoteTier final : public Tier {
 public:
  // The pool's blocks are as large as the tier's. It must outlive this, and nobody else reads
  // through it.
  RemoteTier(std::unique_ptr<Tier> local, std::shared_ptr<PeerPool> pool,
             const RemoteTierOptions& options = {});
  ~RemoteTier() override;

  // An extent whose block b is blocks[b]; fewer than kExtentBlocks, or absent ones: reads of those
  // fail. Ids are at least the local tier's number of extents. Freed as any other.
  // nullopt: max_adopted_extents are in use.
  std::optional<ExtentId> adopt_extent(LeaseId lease, std::span<const RemoteBlock> blocks);
  bool is_adopted(ExtentId extent) const { return extent.value >= first_adopted_; }
  std::int64_t adopted_extents() const { return adopted_count_; }

  std::optional<ExtentId> allocate_extent() override { return local_->allocate_extent(); }
  void free_extent(ExtentId extent) override;
  // A write to an adopted extent fails with kIoError (EROFS).
  std::size_t submit(std::span<const Transfer> transfers) override;
  void poll(std::vector<TransferResult>& results) override;
  // With transfers in flight on both sides it wakes every half millisecond.
  void wait_until(Clock::TimePoint time) override;
  std::size_t block_bytes() const override { return local_->block_bytes(); }
  // The local tier's room, also in flight, which both share.
  TierCapacity capacity() const override;
  std::string describe() const override;

  Tier& local() { return *local_; }

 private:
  static constexpr auto kTurn = std::chrono::microseconds(500);

  struct Adopted {
    std::array<RemoteBlock, kExtentBlocks> blocks = {};
    LeaseId lease;
    std::uint32_t in_flight = 0;
    bool allocated = false;
  };
  Adopted& adopted(ExtentId extent);
  void take(const Transfer& transfer);
  void collect();

  std::unique_ptr<Tier> local_;
  std::shared_ptr<PeerPool> pool_;
  RemoteTierOptions options_;
  std::uint32_t first_adopted_;
  std::deque<Adopted> adopted_;
  std::vector<ExtentId> free_ids_;
  std::int64_t adopted_count_ = 0;
  std::uint64_t last_ticket_ = 0;
  std::unordered_map<std::uint64_t, Transfer> reading_;  // index: ticket
  std::vector<RemoteRead> batch_;
  std::vector<RemoteReadResult> read_results_;
  std::vector<TransferResult> finished_;
};

}  // namespace karez
