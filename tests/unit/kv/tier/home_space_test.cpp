#include "kv/tier/home_space.h"

#include <gtest/gtest.h>

#include <set>

namespace karez {
namespace {

Transfer of(TransferDirection direction, ExtentId extent, int first_block = 0, int num_blocks = 1) {
  static std::byte memory;
  Transfer transfer;
  transfer.direction = direction;
  transfer.extent = extent;
  transfer.first_block = first_block;
  transfer.num_blocks = num_blocks;
  transfer.memory.fill(&memory);
  return transfer;
}
constexpr TransferDirection kRead = TransferDirection::kRead;
constexpr TransferDirection kWrite = TransferDirection::kWrite;

class HomeSpaceTest : public testing::Test {
 protected:
  TransferStatus begin(const Transfer& transfer) { return home_.begin(transfer, checksums_); }
  void end(const Transfer& transfer, TransferStatus status = TransferStatus::kOk) {
    home_.end(transfer, status, checksums_);
  }
  void write(ExtentId extent, int first_block, int num_blocks) {
    const Transfer transfer = of(kWrite, extent, first_block, num_blocks);
    ASSERT_EQ(begin(transfer), TransferStatus::kOk);
    end(transfer);
  }
  bool can_read(ExtentId extent, int first_block, int num_blocks) {
    const Transfer transfer = of(kRead, extent, first_block, num_blocks);
    const bool ok = begin(transfer) == TransferStatus::kOk;
    if (ok) {
      end(transfer);
    }
    return ok;
  }

  HomeSpace home_{2};
  BlockChecksums checksums_ = {};
};

TEST_F(HomeSpaceTest, HandsOutEachExtentOnce) {
  EXPECT_EQ(home_.allocate(), ExtentId(0));
  EXPECT_EQ(home_.allocate(), ExtentId(1));
  EXPECT_EQ(home_.allocate(), std::nullopt);
  EXPECT_EQ(home_.free_extents(), 0);
  home_.free(ExtentId(0));
  EXPECT_EQ(home_.free_extents(), 1);
  EXPECT_EQ(home_.allocate(), ExtentId(0));
}

TEST_F(HomeSpaceTest, AFreedExtentIsHeldUntilTheLastTransferEnds) {
  const ExtentId extent = *home_.allocate();
  write(extent, 0, 2);
  const Transfer first = of(kRead, extent, 0);
  const Transfer second = of(kRead, extent, 1);
  ASSERT_EQ(begin(first), TransferStatus::kOk);
  ASSERT_EQ(begin(second), TransferStatus::kOk);
  home_.free(extent);
  end(first);
  EXPECT_EQ(home_.free_extents(), 1);
  EXPECT_EQ(home_.allocate(), ExtentId(1));
  EXPECT_EQ(home_.allocate(), std::nullopt);
  end(second);
  EXPECT_EQ(home_.allocate(), extent);
}

TEST_F(HomeSpaceTest, OnlyAWriteThatSucceededMakesContent) {
  const ExtentId extent = *home_.allocate();
  EXPECT_FALSE(can_read(extent, 0, 1));
  write(extent, 0, 2);
  EXPECT_TRUE(can_read(extent, 0, 2));
  EXPECT_FALSE(can_read(extent, 1, 2));
  const Transfer again = of(kWrite, extent, 1);
  ASSERT_EQ(begin(again), TransferStatus::kOk);
  end(again, TransferStatus::kIoError);
  EXPECT_FALSE(can_read(extent, 1, 1)) << "neither the old nor the new bytes are sure";
  EXPECT_TRUE(can_read(extent, 0, 1));
}

TEST_F(HomeSpaceTest, AWriteThatEndsAfterTheExtentWasFreedMakesNoContent) {
  const ExtentId extent = *home_.allocate();
  const Transfer late = of(kWrite, extent);
  ASSERT_EQ(begin(late), TransferStatus::kOk);
  home_.free(extent);
  end(late);
  EXPECT_EQ(home_.allocate(), extent);
  EXPECT_FALSE(can_read(extent, 0, 1));
}

TEST_F(HomeSpaceTest, ReadersShareABlockAndAWriterDoesNot) {
  const ExtentId extent = *home_.allocate();
  write(extent, 0, 4);
  const Transfer read = of(kRead, extent, 1, 2);
  ASSERT_EQ(begin(read), TransferStatus::kOk);
  ASSERT_EQ(begin(read), TransferStatus::kOk);
  EXPECT_EQ(begin(of(kWrite, extent, 2)), TransferStatus::kConflict);
  const Transfer beside = of(kWrite, extent, 3);
  ASSERT_EQ(begin(beside), TransferStatus::kOk);
  EXPECT_EQ(begin(of(kRead, extent, 3)), TransferStatus::kConflict);
  EXPECT_EQ(begin(beside), TransferStatus::kConflict);
  end(read);
  EXPECT_EQ(begin(of(kWrite, extent, 2)), TransferStatus::kConflict) << "one reader is left";
  end(read);
  EXPECT_EQ(begin(of(kWrite, extent, 2)), TransferStatus::kOk);
}

TEST_F(HomeSpaceTest, AReadGetsTheChecksumsOfItsBlocks) {
  const ExtentId extent = *home_.allocate();
  checksums_ = {11, 22, 33, 44};
  write(extent, 0, 4);
  checksums_ = {};
  ASSERT_EQ(begin(of(kRead, extent, 2, 2)), TransferStatus::kOk);
  EXPECT_EQ(checksums_[0], 33U);
  EXPECT_EQ(checksums_[1], 44U);
}

TEST_F(HomeSpaceTest, MemoryGrowsWithUseAndNotWithCapacity) {
  HomeSpace large(4'000'000'000);
  EXPECT_LT(large.metadata_bytes(), 1000);
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(large.allocate());
  }
  EXPECT_LE(large.metadata_bytes(), 1000 * 64);
}

}  // namespace
}  // namespace karez
