#include "base/cpu_features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace karez {

namespace {

#if defined(__x86_64__)
bool leaf7_1_eax_bit(unsigned bit) {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && ((eax >> bit) & 1U) != 0;
}

bool leaf7_0_edx_bit(unsigned bit) {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && ((edx >> bit) & 1U) != 0;
}

// Linux hands the 8 KiB tile registers out on request only (arch_prctl, since 5.16).
bool request_amx_tiles() {
#if defined(__linux__)
  constexpr long kArchReqXcompPerm = 0x1023;
  constexpr long kXfeatureXtiledata = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureXtiledata) == 0;
#else
  return false;
#endif
}

CpuLevel detect() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
    return CpuLevel::kPortable;
  }
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl")) {
    return CpuLevel::kAvx2;
  }
  constexpr unsigned kAvx512Bf16Bit = 5;
  if (!leaf7_1_eax_bit(kAvx512Bf16Bit)) {
    return CpuLevel::kAvx512;
  }
  constexpr unsigned kAmxBf16Bit = 22;
  constexpr unsigned kAmxTileBit = 24;
  if (leaf7_0_edx_bit(kAmxBf16Bit) && leaf7_0_edx_bit(kAmxTileBit) && request_amx_tiles()) {
    return CpuLevel::kAmxBf16;
  }
  return CpuLevel::kAvx512Bf16;
}
#else
CpuLevel detect() { return CpuLevel::kPortable; }
#endif

}  // namespace

std::string_view to_string(CpuLevel level) {
  switch (level) {
    case CpuLevel::kPortable:
      return "portable";
    case CpuLevel::kAvx2:
      return "avx2";
    case CpuLevel::kAvx512:
      return "avx512";
    case CpuLevel::kAvx512Bf16:
      return "avx512-bf16";
    case CpuLevel::kAmxBf16:
      return "amx-bf16";
  }
  return "unknown";
}

CpuLevel detected_cpu_level() {
  static const CpuLevel level = detect();
  return level;
}

std::vector<CpuLevel> supported_cpu_levels() {
  std::vector<CpuLevel> levels;
  for (int i = 0; i <= static_cast<int>(detected_cpu_level()); ++i) {
    levels.push_back(static_cast<CpuLevel>(i));
  }
  return levels;
}

}  // namespace karez
