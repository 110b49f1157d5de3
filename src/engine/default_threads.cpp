#include "engine/default_threads.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <string>

namespace karez {
namespace {

int usable_cores() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof(mask), &mask) != 0) {
    return 1;
  }
  std::set<std::string> cores;  // each as the list of its hardware threads
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(static_cast<unsigned>(cpu), &mask)) {
      continue;
    }
    std::ifstream file(
        fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu));
    std::string siblings;
    if (!std::getline(file, siblings)) {
      siblings = fmt::format("cpu {}", cpu);  // not told: a core of its own
    }
    cores.insert(siblings);
  }
  return std::max(1, static_cast<int>(cores.size()));
}

int quota_cores() {
  constexpr int kNoLimit = CPU_SETSIZE;
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  double quota = 0;
  double period = 0;
  if (!(file >> quota >> period) || quota <= 0 || period <= 0) {
    return kNoLimit;  // "max 100000", or no such file
  }
  return std::clamp(static_cast<int>(std::ceil(quota / period)), 1, kNoLimit);
}

}  // namespace

int default_num_threads() { return std::min(usable_cores(), quota_cores()); }

}  // namespace karez
