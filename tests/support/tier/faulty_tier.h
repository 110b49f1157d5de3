// A tier that goes wrong as told: late, failing, short, rotten or silent.
//
// Thread: as Tier. Owns: the tier below it.
#pragma once

#include <functional>
#include <map>
#include <memory>

#include "kv/tier/tier.h"

namespace karez::test {

// "every n": the n-th, 2n-th... transfer accepted. 0: never. Several may hit one transfer.
struct Faults {
  int fail_every = 0;          // kIoError after the bytes were moved, in part wrongly
  int fail_write = 0;          // not "every": the n-th write accepted, kIoError
  int short_every = 0;         // kShort, likewise
  int rot_every = 0;           // a bit of the medium is wrong while a read takes place
  int lose_every = 0;          // no result, until report_lost()
  bool hits_writes = true;     // false: reads only
  Clock::Duration delay = {};  // between submit and result
};

class FaultyTier final : public Tier {
 public:
  // flip_bit(extent, block) changes the medium, and changes it back when it is called again.
  using FlipBit = std::function<void(ExtentId, int)>;

  FaultyTier(std::unique_ptr<Tier> inner, const Faults& faults, FlipBit flip_bit,
             const Clock& clock);

  // The results of the lost ones come with the next poll().
  void report_lost();
  int num_lost() const { return static_cast<int>(lost_.size()); }

  std::optional<ExtentId> allocate_extent() override { return inner_->allocate_extent(); }
  void free_extent(ExtentId extent) override { inner_->free_extent(extent); }
  std::size_t submit(std::span<const Transfer> transfers) override;
  void poll(std::vector<TransferResult>& results) override;
  void wait_until(Clock::TimePoint time) override;
  std::size_t block_bytes() const override { return inner_->block_bytes(); }
  TierCapacity capacity() const override;
  std::string describe() const override { return "faulty " + inner_->describe(); }

 private:
  struct Plan {
    TransferStatus status = TransferStatus::kOk;  // kOk: as the tier below says
    bool rots = false;
    bool is_lost = false;
    Clock::TimePoint due;
  };
  void collect();
  void spoil(const Transfer& transfer) const;

  std::unique_ptr<Tier> inner_;
  Faults faults_;
  FlipBit flip_bit_;
  const Clock& clock_;
  int num_submitted_ = 0;
  int num_writes_ = 0;                   // of these
  std::map<std::uint64_t, Plan> plans_;  // index: id of a transfer that the tier below has
  std::multimap<Clock::TimePoint, TransferResult> held_;  // index: when it is due
  std::vector<TransferResult> lost_;
};

}  // namespace karez::test
