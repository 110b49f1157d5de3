// The inner loops of BlockSelector, for each instruction set that has its own (plain data and
// function pointers, as in kernel_table.h).
//
// All give the same results to the bit. Thread: they touch only the memory named by their
// arguments.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/cpu_features.h"

namespace karez {

struct SelectKernels {
  // scores[i] = masses[i] * factor, or that is added.
  void (*set_shares)(const float* masses, float factor, float* scores, std::size_t count);
  void (*add_shares)(const float* masses, float factor, float* scores, std::size_t count);
  // -infinity if there is none that is a number.
  float (*largest)(const float* x, std::size_t count);
  // As top_k() in block_selector.h. Requires: k > 0. keys, other_keys: [count + kTopKSlack],
  // scratch.
  void (*top_k)(const float* scores, std::size_t count, std::size_t k, std::int32_t* out,
                std::uint32_t* keys, std::uint32_t* other_keys);
};

inline constexpr std::size_t kTopKSlack = 32;

extern const SelectKernels kPortableSelectKernels;
#if defined(__x86_64__)
extern const SelectKernels kAvx512SelectKernels;
#endif

// Requires: level <= detected_cpu_level().
inline const SelectKernels& select_kernels([[maybe_unused]] CpuLevel level) {
#if defined(__x86_64__)
  if (level >= CpuLevel::kAvx512) {
    return kAvx512SelectKernels;
  }
#endif
  return kPortableSelectKernels;
}

}  // namespace karez
