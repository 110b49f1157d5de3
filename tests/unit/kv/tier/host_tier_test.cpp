#include "kv/tier/host_tier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/tier/fast_memory.h"
#include "support/tier/tier_cases.h"

namespace karez::test {
namespace {

using testing::HasSubstr;

TEST(HostTier, ABitThatChangedAtHomeFailsTheRead) {
  HostTierOptions options;
  options.block_bytes = 4096;
  options.num_workers = 0;
  Arena arena = *Arena::create(2 * 4 * 4096);
  const std::span<std::byte> home = arena.bytes();
  TierUnderTest under_test{
      {&Clock::steady(), [](const Clock*) {}}, *HostTier::create(options, std::move(arena)), {}};
  FastMemory memory(4096, 4);
  static_cast<void>(under_test.tier->allocate_extent());
  Transfer transfer;
  transfer.direction = TransferDirection::kWrite;
  transfer.extent = *under_test.tier->allocate_extent();
  transfer.num_blocks = 4;
  for (int i = 0; i < 4; ++i) {
    memory.fill(i, static_cast<std::uint64_t>(i));
    transfer.memory[static_cast<std::size_t>(i)] = memory.slot(i);
  }
  ASSERT_TRUE(run_transfers(under_test, {transfer})[0].ok());
  transfer.direction = TransferDirection::kRead;
  for (const std::size_t at : {std::size_t{0}, std::size_t{5000}, std::size_t{4 * 4096 - 1}}) {
    home[transfer.extent.value * std::size_t{4} * 4096 + at] ^= std::byte{1};
    EXPECT_EQ(run_transfers(under_test, {transfer})[0].status, TransferStatus::kChecksumMismatch)
        << at;
    home[transfer.extent.value * std::size_t{4} * 4096 + at] ^= std::byte{1};
    EXPECT_TRUE(run_transfers(under_test, {transfer})[0].ok());
  }
}

TEST(HostTier, DroppingItWithTransfersInFlightLeavesNoThreadInTheirMemory) {
  for (int round = 0; round < 20; ++round) {
    HostTierOptions options;
    options.block_bytes = 4096;
    options.capacity_bytes = 1 << 20;
    options.num_workers = 2;
    auto tier = *HostTier::create(options);
    FastMemory memory(4096, 64);
    std::vector<Transfer> transfers(64);
    for (int i = 0; i < 64; ++i) {
      Transfer& transfer = transfers[static_cast<std::size_t>(i)];
      transfer.id = static_cast<std::uint64_t>(i);
      transfer.direction = TransferDirection::kWrite;
      transfer.extent = *tier->allocate_extent();
      transfer.memory[0] = memory.slot(i);
    }
    EXPECT_EQ(tier->submit(transfers), 64U);
    tier.reset();
    memory.fill(0, 1);  // a race, for ThreadSanitizer, if a worker still read it
  }
}

TEST(HostTier, OptionsThatCannotBeAreRefused) {
  const auto message = [](const HostTierOptions& options) {
    const auto tier = HostTier::create(options);
    EXPECT_FALSE(tier);
    return tier ? std::string() : tier.error().message();
  };
  HostTierOptions options{.block_bytes = 4096, .capacity_bytes = 16383};
  EXPECT_THAT(message(options), HasSubstr("is 16383 bytes, an extent of 4 blocks of 4096 bytes "
                                          "needs 16384"));
  options.capacity_bytes = -1;
  EXPECT_THAT(message(options), HasSubstr("is -1 bytes"));
  options.capacity_bytes = std::int64_t{1} << 60U;
  EXPECT_THAT(message(options), HasSubstr("this machine or container has"));
  options.capacity_bytes = 1 << 20;
  options.num_workers = 65;
  EXPECT_THAT(message(options), HasSubstr("worker threads is 65, allowed are 0 to 64"));
  options.num_workers = 1;
  options.max_in_flight = 0;
  EXPECT_THAT(message(options), HasSubstr("in flight is 0"));
  options.max_in_flight = 1;
  options.block_bytes = 0;
  EXPECT_THAT(message(options), HasSubstr("block size in bytes is 0"));
}

}  // namespace
}  // namespace karez::test
