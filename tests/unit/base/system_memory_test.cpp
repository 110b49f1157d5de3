#include "base/system_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/bytes.h"

namespace karez {
namespace {

TEST(MemoryLimit, IsNotMoreThanTheMachineHasAndRoomForThisTest) {
  const std::int64_t machine = std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE);
  EXPECT_LE(memory_limit_bytes(), machine);
  EXPECT_GT(memory_limit_bytes(), 16 * kMiB);
}

}  // namespace
}  // namespace karez
