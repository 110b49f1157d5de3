// How much memory this process can ever have: what a cap must stay below.
#pragma once

#include <cstdint>

namespace karez {

// The machine's memory, or the limit of this process's control group (container) if that is
// smaller. Linux: cgroup v2 and v1 as mounted at /sys/fs/cgroup.
std::int64_t memory_limit_bytes();

}  // namespace karez
