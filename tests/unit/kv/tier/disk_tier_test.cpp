#include "kv/tier/disk_tier.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <thread>

#include "support/tier/fast_memory.h"
#include "support/tier/tier_cases.h"

namespace karez::test {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kCapacityBytes = 1 << 20;

class DiskTierTest : public testing::Test {
 protected:
  DiskTierTest() {
    std::string name = (std::filesystem::temp_directory_path() / "karez_disk_tier_XXXXXX").string();
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    options_ = {.directory = name, .block_bytes = 4096, .capacity_bytes = kCapacityBytes};
  }
  ~DiskTierTest() override { std::filesystem::remove_all(options_.directory); }

  void make() {
    Expected<std::unique_ptr<DiskTier>> tier = DiskTier::create(options_);
    ASSERT_TRUE(tier) << tier.error().to_string();
    disk_ = tier->get();
    under_test_ = {{&Clock::steady(), [](const Clock*) {}}, std::move(*tier), {}};
  }
  Transfer transfer(TransferDirection direction, ExtentId extent, int num_blocks = 4) {
    Transfer made;
    made.id = ++last_id_;
    made.direction = direction;
    made.extent = extent;
    made.num_blocks = num_blocks;
    for (int i = 0; i < num_blocks; ++i) {
      made.memory[static_cast<std::size_t>(i)] = memory_.slot(i);
    }
    return made;
  }
  TransferResult run(const Transfer& one) { return run_transfers(under_test_, {one})[0]; }
  // The only open file of this process under the directory: it has no name to open it by.
  int file_of_tier() const {
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code ignored;
      const std::string target = std::filesystem::read_symlink(entry.path(), ignored).string();
      if (target.starts_with(options_.directory + "/")) {
        return open(entry.path().c_str(), O_RDWR | O_CLOEXEC);
      }
    }
    return -1;
  }

  DiskTierOptions options_;
  FastMemory memory_{4096, 4};
  TierUnderTest under_test_;
  DiskTier* disk_ = nullptr;
  std::uint64_t last_id_ = 0;
};

TEST_F(DiskTierTest, LeavesNoNameInItsDirectory) {
  std::ofstream(options_.directory + "/foreign.kv") << "not ours";
  make();
  ASSERT_TRUE(run(transfer(TransferDirection::kWrite, *disk_->allocate_extent())).ok());
  int num_names = 0;
  for (const auto& entry : std::filesystem::directory_iterator(options_.directory)) {
    EXPECT_EQ(entry.path().filename(), "foreign.kv");
    ++num_names;
  }
  EXPECT_EQ(num_names, 1);
}

TEST_F(DiskTierTest, TheFileIsNeverLongerThanTheCapacity) {
  options_.capacity_bytes = 5 * 16384 + 100;
  make();
  while (const std::optional<ExtentId> extent = disk_->allocate_extent()) {
    ASSERT_TRUE(run(transfer(TransferDirection::kWrite, *extent)).ok());
  }
  const int file = file_of_tier();
  ASSERT_GE(file, 0);
  EXPECT_LE(lseek(file, 0, SEEK_END), options_.capacity_bytes);
  close(file);
}

TEST_F(DiskTierTest, ABitThatChangedOnTheDiskFailsTheRead) {
  make();
  for (int i = 0; i < 4; ++i) {
    memory_.fill(i, static_cast<std::uint64_t>(i));
  }
  const ExtentId extent = *disk_->allocate_extent();
  ASSERT_TRUE(run(transfer(TransferDirection::kWrite, extent)).ok());
  ASSERT_TRUE(run(transfer(TransferDirection::kRead, extent)).ok());
  const int file = file_of_tier();
  ASSERT_GE(file, 0);
  const off_t at = 3 * disk_->capacity().extent_bytes / 4 + 4095;
  char byte = 0;
  ASSERT_EQ(pread(file, &byte, 1, at), 1);
  byte = static_cast<char>(byte ^ 1);
  ASSERT_EQ(pwrite(file, &byte, 1, at), 1);
  ASSERT_EQ(fsync(file), 0);
  close(file);
  EXPECT_EQ(run(transfer(TransferDirection::kRead, extent)).status,
            TransferStatus::kChecksumMismatch);
  EXPECT_TRUE(run(transfer(TransferDirection::kRead, extent, 3)).ok()) << "the others are whole";
}

TEST_F(DiskTierTest, ReadsPastTheEndOfTheFileAreShort) {
  make();
  const ExtentId extent = *disk_->allocate_extent();
  ASSERT_TRUE(run(transfer(TransferDirection::kWrite, extent)).ok());
  const int file = file_of_tier();
  ASSERT_GE(file, 0);
  ASSERT_EQ(ftruncate(file, 8192), 0);
  close(file);
  EXPECT_EQ(run(transfer(TransferDirection::kRead, extent)).status, TransferStatus::kShort);
}

// The limit on file sizes stands for a full disk: both fail the write in the same place.
TEST_F(DiskTierTest, AWriteWithoutRoomFailsAndTheRestGoesOn) {
  make();
  const ExtentId low = *disk_->allocate_extent();
  const ExtentId high = *disk_->allocate_extent();
  rlimit old_limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit = old_limit;
  limit.rlim_cur = static_cast<rlim_t>(disk_->capacity().extent_bytes);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const TransferResult refused = run(transfer(TransferDirection::kWrite, high));
  const TransferResult written = run(transfer(TransferDirection::kWrite, low));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old_limit), 0);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(refused.status, TransferStatus::kNoSpace);
  EXPECT_EQ(refused.error_number, EFBIG);
  EXPECT_TRUE(written.ok());
  EXPECT_FALSE(run(transfer(TransferDirection::kRead, high)).ok());
  EXPECT_TRUE(run(transfer(TransferDirection::kRead, low)).ok());
  EXPECT_TRUE(run(transfer(TransferDirection::kWrite, high)).ok()) << "there is room again";
}

TEST_F(DiskTierTest, OnlyMemoryThatIsNotAlignedIsStaged) {
  make();
  const ExtentId extent = *disk_->allocate_extent();
  ASSERT_TRUE(run(transfer(TransferDirection::kWrite, extent)).ok());
  EXPECT_EQ(disk_->num_staged(), 0);
  Transfer read = transfer(TransferDirection::kRead, extent, 1);
  FastMemory unaligned(4096, 1, 64);
  read.memory[0] = unaligned.slot(0);
  ASSERT_TRUE(run(read).ok());
  EXPECT_EQ(disk_->num_staged(), disk_->is_direct() ? 1 : 0);
}

TEST_F(DiskTierTest, DroppingItWaitsForItsMemory) {
  make();
  std::vector<Transfer> transfers;
  for (int i = 0; i < 16; ++i) {
    transfers.push_back(transfer(TransferDirection::kWrite, *disk_->allocate_extent()));
  }
  EXPECT_EQ(disk_->submit(transfers), 16U);
  under_test_.tier.reset();
}

TEST_F(DiskTierTest, ADirectoryThatCannotBeUsedIsNamed) {
  const auto error = [this](const std::string& directory) {
    options_.directory = directory;
    const auto tier = DiskTier::create(options_);
    EXPECT_FALSE(tier) << directory;
    return tier ? Status(StatusCode::kInternal, "none") : tier.error();
  };
  const std::string real = options_.directory;
  EXPECT_EQ(error(real + "/missing").code(), StatusCode::kNotFound);
  EXPECT_THAT(error(real + "/missing").message(), HasSubstr("/missing: cannot open"));
  std::ofstream(real + "/file") << "x";
  EXPECT_EQ(error(real + "/file").code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(error("/proc").message(), HasSubstr("/proc: cannot make a file"));
  options_.directory = real;
}

TEST_F(DiskTierTest, OptionsThatCannotBeAreRefused) {
  const auto message = [](const DiskTierOptions& options) {
    const auto tier = DiskTier::create(options);
    EXPECT_FALSE(tier);
    return tier ? std::string() : tier.error().message();
  };
  DiskTierOptions options = options_;
  options.capacity_bytes = 16383;
  EXPECT_THAT(message(options), HasSubstr("is 16383 bytes, an extent of 4 blocks of 4096 bytes"));
  options.capacity_bytes = -5;
  EXPECT_THAT(message(options), HasSubstr("is -5 bytes"));
  options = options_;
  options.block_bytes = 0;
  EXPECT_THAT(message(options), HasSubstr("block size in bytes is 0"));
  options = options_;
  options.max_in_flight = 5000;
  EXPECT_THAT(message(options), HasSubstr("in flight is 5000, allowed are 1 to 4096"));
}

// As a container does it. The filter holds for the thread that installs it only.
void forbid_io_uring() {
  std::array filter = {sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                       sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
                       sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                       sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program = {static_cast<unsigned short>(filter.size()), filter.data()};
  ASSERT_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

TEST_F(DiskTierTest, AKernelThatForbidsIoUringIsAClearError) {
  std::thread([this] {
    forbid_io_uring();
    const auto tier = DiskTier::create(options_);
    ASSERT_FALSE(tier);
    EXPECT_EQ(tier.error().code(), StatusCode::kUnavailable);
    EXPECT_THAT(tier.error().message(), HasSubstr("kernel.io_uring_disabled"));
  }).join();
}

TEST_F(DiskTierTest, SaysWhetherThePageCacheIsInTheWay) {
  make();
  EXPECT_THAT(disk_->describe(), HasSubstr(disk_->is_direct() ? "O_DIRECT (" : "page cache"));
}

}  // namespace
}  // namespace karez::test
