#include "remote/export_memory.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <span>
#include <string>
#include <vector>

namespace karez::test {
namespace export_memory_test {

constexpr std::size_t kBytes = 8 << 20;
constexpr int kNotAllowed = 77;

// Of pages that are in memory.
std::size_t count_resident(std::span<const std::byte> bytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGE_SIZE));
  std::vector<unsigned char> pages((bytes.size() + page - 1) / page);
  EXPECT_EQ(mincore(const_cast<std::byte*>(bytes.data()), bytes.size(), pages.data()), 0);
  return static_cast<std::size_t>(
      std::ranges::count_if(pages, [](unsigned char state) { return (state & 1U) != 0; }));
}

// Puts another /dev/shm before this process, and no other.
bool mount_shared_memory(const char* options) {
  const uid_t user = geteuid();
  if (unshare(user == 0 ? CLONE_NEWNS : CLONE_NEWUSER | CLONE_NEWNS) != 0) {
    return false;
  }
  if (user != 0) {
    std::ofstream("/proc/self/uid_map") << "0 " << user << " 1";
  }
  return mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         mount("tmpfs", "/dev/shm", "tmpfs", 0, options) == 0;
}

// In a process of its own: 0 if the memory is private for this reason, and all of it can be used.
[[noreturn]] void create_with(const char* options, const std::string& reason) {
  if (!mount_shared_memory(options)) {
    _exit(kNotAllowed);
  }
  const auto memory = ExportMemory::create(kBytes);
  if (!memory || (*memory)->is_shared()) {
    std::fprintf(stderr, "it is no private memory\n");
    _exit(1);
  }
  std::ranges::fill((*memory)->bytes(), std::byte{1});
  const std::string why = (*memory)->why_private();
  std::fprintf(stderr, "%s\n", why.c_str());
  _exit(why.find(reason) == std::string::npos ? 1 : 0);
}

bool is_private_with(const char* options, const std::string& reason, bool& is_allowed) {
  const pid_t child = fork();
  if (child == 0) {
    create_with(options, reason);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  is_allowed = !WIFEXITED(status) || WEXITSTATUS(status) != kNotAllowed;
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(ExportMemory, SharedMemoryIsThereBeforeItIsUsed) {
  const auto memory = ExportMemory::create(kBytes);
  ASSERT_TRUE(memory) << memory.error().message();
  if (!(*memory)->is_shared()) {
    GTEST_SKIP() << (*memory)->why_private();
  }
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGE_SIZE));
  EXPECT_EQ(count_resident((*memory)->bytes()), kBytes / page);
}

TEST(ExportMemory, IsPrivateAndSaysWhyWhereSharedMemoryHasNoRoom) {
  bool is_allowed = true;
  const bool is_private =
      is_private_with("size=1m", "/dev/shm has 1048576 bytes left, needed are 8388608", is_allowed);
  if (!is_allowed) {
    GTEST_SKIP() << "no mount namespaces here";
  }
  EXPECT_TRUE(is_private);
}

// As when another process takes some of it first: here it is UCX, for its messages.
TEST(ExportMemory, IsPrivateWhereSharedMemoryIsLostAfterTheLook) {
  bool is_allowed = true;
  const bool is_private = is_private_with(
      "size=8m", "/dev/shm had 8388608 bytes left, needed are 8388608: ", is_allowed);
  if (!is_allowed) {
    GTEST_SKIP() << "no mount namespaces here";
  }
  EXPECT_TRUE(is_private);
}

}  // namespace export_memory_test
}  // namespace karez::test
