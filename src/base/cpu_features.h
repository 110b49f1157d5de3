// Which vector instructions this process may use, best first.
#pragma once

#include <string_view>
#include <vector>

namespace karez {

enum class CpuLevel {
  kPortable,    // plain C++
  kAvx2,        // AVX2 and FMA
  kAvx512,      // AVX-512 F, BW, DQ, VL
  kAvx512Bf16,  // the same and AVX512_BF16
  kAmxBf16,     // the same and AMX-BF16 tiles, which the kernel has granted to this process
};

std::string_view to_string(CpuLevel level);

// The highest level that the processor and the operating system support.
CpuLevel detected_cpu_level();

// detected_cpu_level() and all below it, ascending: what a test runs through.
std::vector<CpuLevel> supported_cpu_levels();

}  // namespace karez
