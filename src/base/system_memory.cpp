#include "base/system_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace karez {

std::int64_t memory_limit_bytes() {
  std::int64_t limit = std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE);
  for (const char* path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::int64_t group_limit = 0;
    // A group without a limit says "max" (v2), which is no number, or a number near 2^63 (v1).
    if (std::ifstream(path) >> group_limit && group_limit > 0) {
      limit = std::min(limit, group_limit);
    }
  }
  return limit;
}

}  // namespace karez
