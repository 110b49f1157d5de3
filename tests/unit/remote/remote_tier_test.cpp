#include "remote/remote_tier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "kv/tier/host_tier.h"
#include "support/remote/two_nodes.h"

namespace karez::test {
namespace remote_tier_test {

using std::chrono::seconds;

constexpr int kLocalExtents = 4;

std::unique_ptr<RemoteTier> make_tier(const std::shared_ptr<PeerPool>& pool,
                                      std::int64_t max_adopted = 100) {
  HostTierOptions options;
  options.block_bytes = pool->config().block_bytes;
  options.capacity_bytes =
      static_cast<std::int64_t>(options.block_bytes) * kExtentBlocks * kLocalExtents;
  options.num_workers = 0;
  return std::make_unique<RemoteTier>(HostTier::create(options).value(), pool,
                                      RemoteTierOptions{.max_adopted_extents = max_adopted});
}

class RemoteTierTest : public testing::Test {
 protected:
  void start(const NodeOptions& options = {}, std::int64_t max_adopted = 100) {
    nodes_ = std::make_unique<TwoNodes>(options);
    tier_ = make_tier(nodes_->pool, max_adopted);
    key_ = nodes_->exporter->add(make_export(nodes_->config, *nodes_->memory, 5, 200)).value();
    manifest_ = nodes_->fetch(key_, 5).value();
  }

  ExtentId adopt(std::size_t first_block, std::size_t count = kExtentBlocks) {
    return tier_
        ->adopt_extent(manifest_.lease, std::span(manifest_.blocks).subspan(first_block, count))
        .value();
  }
  Transfer transfer(ExtentId extent, int first_block, int num_blocks,
                    TransferDirection direction = TransferDirection::kRead) {
    Transfer made;
    made.id = ++last_id_;
    made.direction = direction;
    made.extent = extent;
    made.first_block = first_block;
    made.num_blocks = num_blocks;
    for (int i = 0; i < num_blocks; ++i) {
      made.memory[static_cast<std::size_t>(i)] = slots_[static_cast<std::size_t>(i)].data();
    }
    return made;
  }
  std::vector<TransferResult> run(const std::vector<Transfer>& transfers) {
    EXPECT_EQ(tier_->submit(transfers), transfers.size());
    std::vector<TransferResult> results;
    EXPECT_TRUE(nodes_->poll_until([&] {
      tier_->poll(results);
      return results.size() >= transfers.size();
    }));
    EXPECT_EQ(results.size(), transfers.size());
    EXPECT_EQ(tier_->capacity().in_flight, 0);
    return results;
  }
  TransferStatus run(const Transfer& transfer) { return run(std::vector{transfer})[0].status; }
  bool slot_holds(std::size_t slot, std::size_t block) {
    return holds_block(nodes_->config, slots_[slot], 5, manifest_.blocks[block].offset);
  }

  std::unique_ptr<TwoNodes> nodes_;
  std::unique_ptr<RemoteTier> tier_;
  RequestKey key_;
  Manifest manifest_;
  std::uint64_t last_id_ = 0;
  std::array<std::vector<std::byte>, kExtentBlocks> slots_ = {
      std::vector<std::byte>(1024), std::vector<std::byte>(1024), std::vector<std::byte>(1024),
      std::vector<std::byte>(1024)};
};

TEST_F(RemoteTierTest, AdoptedExtentsAreReadFromThePeerAndTakeNoRoom) {
  for (const bool share : {false, true}) {
    start({.share_memory = share});
    const ExtentId extent = adopt(8);
    EXPECT_GE(extent.value, static_cast<std::uint32_t>(kLocalExtents));
    EXPECT_TRUE(tier_->is_adopted(extent));
    EXPECT_EQ(tier_->capacity().free_extents, kLocalExtents);
    EXPECT_EQ(run(transfer(extent, 0, 4)), TransferStatus::kOk);
    for (std::size_t i = 0; i < kExtentBlocks; ++i) {
      EXPECT_TRUE(slot_holds(i, 8 + i)) << i;
    }
    EXPECT_EQ(run(transfer(extent, 3, 1)), TransferStatus::kOk);
    EXPECT_TRUE(slot_holds(0, 11));
  }
}

TEST_F(RemoteTierTest, LocalAndAdoptedTransfersAreTakenInOneCall) {
  start();
  const ExtentId remote = adopt(0);
  const ExtentId local = tier_->allocate_extent().value();
  EXPECT_FALSE(tier_->is_adopted(local));
  std::vector<std::byte> written(1024, std::byte{9});
  Transfer write = transfer(local, 0, 1, TransferDirection::kWrite);
  write.memory[0] = written.data();
  ASSERT_EQ(run(write), TransferStatus::kOk);
  std::vector<std::byte> read_back(1024);
  Transfer local_read = transfer(local, 0, 1);
  local_read.memory[0] = read_back.data();
  Transfer remote_read = transfer(remote, 1, 2);
  for (const TransferResult& result : run({local_read, remote_read, local_read})) {
    EXPECT_TRUE(result.ok());
  }
  EXPECT_EQ(read_back, written);
  EXPECT_TRUE(slot_holds(1, 2));
}

TEST_F(RemoteTierTest, WhatIsAdoptedIsNeverWritten) {
  start();
  const TransferResult result =
      run(std::vector{transfer(adopt(0), 0, 1, TransferDirection::kWrite)})[0];
  EXPECT_EQ(result.status, TransferStatus::kIoError);
  EXPECT_EQ(result.error_number, EROFS);
}

TEST_F(RemoteTierTest, BlocksThatAreNotThereFailAlone) {
  start();
  const ExtentId extent = adopt(0, 2);
  EXPECT_EQ(run(transfer(extent, 0, 2)), TransferStatus::kOk);
  EXPECT_EQ(run(transfer(extent, 1, 2)), TransferStatus::kChecksumMismatch);
}

TEST_F(RemoteTierTest, RoomForAdoptedExtentsHasALimitAndIsUsedAgain) {
  start({}, 2);
  const ExtentId first = adopt(0);
  const ExtentId second = adopt(4);
  EXPECT_EQ(tier_->adopt_extent(manifest_.lease, {}), std::nullopt);
  tier_->free_extent(first);
  EXPECT_EQ(tier_->adopted_extents(), 1);
  EXPECT_EQ(adopt(8), first);
  EXPECT_EQ(run(transfer(first, 0, 1)), TransferStatus::kOk);
  EXPECT_TRUE(slot_holds(0, 8));
  // With a read in flight its room waits.
  const Transfer read = transfer(second, 0, 1);
  ASSERT_EQ(tier_->submit({&read, 1}), 1U);
  tier_->free_extent(second);
  EXPECT_EQ(tier_->adopt_extent(manifest_.lease, {}), std::nullopt);
  std::vector<TransferResult> results;
  ASSERT_TRUE(nodes_->poll_until([&] {
    tier_->poll(results);
    return !results.empty();
  }));
  EXPECT_TRUE(tier_->adopt_extent(manifest_.lease, {}).has_value());
}

// In messages the exporter notices, out of shared memory the checksum says it.
TEST_F(RemoteTierTest, BlocksThatTheProducerHasReusedAreNotData) {
  for (const bool share : {false, true}) {
    start({.share_memory = share});
    const ExtentId extent = adopt(0);
    ASSERT_TRUE(nodes_->exporter->remove(key_));
    make_export(nodes_->config, *nodes_->memory, 6, 200);  // other bytes in the same places
    EXPECT_EQ(run(transfer(extent, 0, 4)),
              share ? TransferStatus::kChecksumMismatch : TransferStatus::kIoError);
  }
}

TEST_F(RemoteTierTest, ALeaseThatHasRunOutFailsReads) {
  start();
  const ExtentId extent = adopt(0);
  nodes_->clock.advance(seconds(30));
  std::vector<EndedExport> ended;
  nodes_->exporter->poll(ended);
  ASSERT_EQ(ended.size(), 1U);
  EXPECT_EQ(ended[0].end, ExportEnd::kExpired);
  EXPECT_EQ(run(transfer(extent, 0, 4)), TransferStatus::kIoError);
}

TEST_F(RemoteTierTest, AWrongChecksumOfTheManifestFailsTheRead) {
  for (const bool share : {false, true}) {
    start({.share_memory = share});
    manifest_.blocks[2].checksum ^= 1;
    const ExtentId extent = adopt(0);
    EXPECT_EQ(run(transfer(extent, 0, 4)), TransferStatus::kChecksumMismatch);
    EXPECT_EQ(run(transfer(extent, 0, 2)), TransferStatus::kOk);
  }
}

TEST_F(RemoteTierTest, AnOffsetOutsideTheMemoryOfThePeerIsNotRead) {
  start({.share_memory = true});
  manifest_.blocks[0].offset = std::uint64_t{1} << 40U;
  EXPECT_EQ(run(transfer(adopt(0), 0, 1)), TransferStatus::kChecksumMismatch);
}

TEST_F(RemoteTierTest, ReadsUnderWayEndWithTheTier) {
  start();
  const ExtentId extent = adopt(0);
  std::vector<Transfer> reads;
  for (int i = 0; i < 20; ++i) {
    reads.push_back(transfer(extent, 0, 4));
  }
  ASSERT_EQ(tier_->submit(reads), reads.size());
  tier_.reset();
  EXPECT_EQ(nodes_->pool->reads_in_flight(), 0);
  // What still comes finds no memory.
  for (std::vector<std::byte>& slot : slots_) {
    std::vector<std::byte>().swap(slot);
  }
  EXPECT_EQ(nodes_->read(manifest_.lease, manifest_.blocks[3]), TransferStatus::kOk);
}

// A producer in a process of its own, that dies.
class DyingProducer {
 public:
  struct Address {
    std::uint16_t port = 0;
    RequestKey key;
  };
  explicit DyingProducer(bool share) {
    EXPECT_EQ(pipe(pipe_.data()), 0);
    child_ = fork();
    if (child_ == 0) {
      TwoNodes nodes({.share_memory = share});
      Address address{
          nodes.exporter->port(),
          nodes.exporter->add(make_export(nodes.config, *nodes.memory, 5, 200)).value()};
      if (write(pipe_[1], &address, sizeof address) != sizeof address) {
        _exit(1);
      }
      while (true) {
        pause();
      }
    }
    EXPECT_EQ(read(pipe_[0], &address_, sizeof address_), static_cast<ssize_t>(sizeof address_));
  }
  DyingProducer(const DyingProducer&) = delete;
  DyingProducer& operator=(const DyingProducer&) = delete;
  ~DyingProducer() {
    kill();
    close(pipe_[0]);
    close(pipe_[1]);
  }
  const Address& address() const { return address_; }
  void kill() {
    if (child_ > 0) {
      ::kill(child_, SIGKILL);
      waitpid(child_, nullptr, 0);
      child_ = -1;
    }
  }

 private:
  std::array<int, 2> pipe_ = {-1, -1};
  pid_t child_ = -1;
  Address address_;
};

TEST_F(RemoteTierTest, AProducerThatDiesInMidTransferFailsReadsAndNothingElse) {
  for (const bool share : {false, true}) {
    DyingProducer producer(share);
    TwoNodes nodes;
    const FetchId id =
        nodes.pool->fetch({"127.0.0.1", producer.address().port}, producer.address().key, 5,
                          nodes.clock.now() + seconds(60));
    std::optional<Expected<Manifest>> outcome;
    ASSERT_TRUE(nodes.poll_until([&] {
      outcome = nodes.pool->take(id);
      return outcome.has_value();
    }));
    ASSERT_TRUE(outcome->has_value()) << outcome->error().to_string();
    const Manifest manifest = std::move(**outcome);
    const auto tier = make_tier(nodes.pool);
    std::vector<std::vector<std::byte>> memory(600, std::vector<std::byte>(1024, std::byte{0xEE}));
    std::vector<Transfer> reads;
    for (std::size_t i = 0; i < memory.size(); ++i) {
      const std::size_t block = i % manifest.blocks.size();
      Transfer read;
      read.id = i;
      read.extent = tier->adopt_extent(manifest.lease, std::span(manifest.blocks).subspan(block, 1))
                        .value_or(ExtentId(kLocalExtents));
      read.memory[0] = memory[i].data();
      read.identity.block =
          static_cast<std::uint32_t>(read.extent == ExtentId(kLocalExtents) ? 0 : block);
      reads.push_back(read);
    }
    std::vector<TransferResult> results;
    ASSERT_EQ(tier->submit(std::span(reads).first(300)), 300U);
    ASSERT_TRUE(nodes.poll_until([&] {
      tier->poll(results);
      return results.size() >= 100;
    }));
    producer.kill();
    ASSERT_EQ(tier->submit(std::span(reads).subspan(300)), 300U);
    ASSERT_TRUE(nodes.poll_until([&] {
      tier->poll(results);
      return results.size() == reads.size();
    }));
    int num_ok = 0;
    for (const TransferResult& result : results) {
      if (result.ok()) {
        ++num_ok;
        EXPECT_TRUE(holds_block(nodes.config, memory[result.transfer.id], 5,
                                manifest.blocks[result.transfer.identity.block].offset));
      } else {
        EXPECT_EQ(result.status, TransferStatus::kIoError);
      }
    }
    EXPECT_GE(num_ok, 100);
    ASSERT_TRUE(nodes.poll_until([&] { return !nodes.pool->is_alive(manifest.lease); }));
    EXPECT_EQ(nodes.pool->stats().leases, 0);
    EXPECT_EQ(nodes.pool->stats().connections, 0);
    // Others are served as before.
    const RequestKey key =
        nodes.exporter->add(make_export(nodes.config, *nodes.memory, 9, 20)).value();
    EXPECT_TRUE(nodes.fetch(key, 9).has_value());
  }
}

}  // namespace remote_tier_test
}  // namespace karez::test
