#include "engine/kv_capacity.h"

#include <limits>

namespace karez {

std::int64_t slots_in_cap(const KVCacheSpec& spec, std::int64_t cap_bytes) {
  return cap_bytes / static_cast<std::int64_t>(spec.slot_bytes());
}

std::int64_t longest_sequence_tokens(const KVCacheSpec& spec, std::int64_t cap_bytes,
                                     std::int64_t max_tokens, std::int64_t step_tokens) {
  const std::int64_t slots = slots_in_cap(spec, cap_bytes);
  // A longer sequence never needs fewer slots, so the longest is found by halving.
  std::int64_t fits = 0;
  std::int64_t too_long = max_tokens + 1;
  while (too_long - fits > 1) {
    const std::int64_t middle = fits + (too_long - fits) / 2;
    (spec.slots_for_sequence(middle, step_tokens) <= slots ? fits : too_long) = middle;
  }
  return fits;
}

std::int64_t sequences_in_cap(const KVCacheSpec& spec, std::int64_t cap_bytes,
                              std::int64_t context_tokens, std::int64_t step_tokens) {
  return slots_in_cap(spec, cap_bytes) / spec.slots_for_sequence(context_tokens, step_tokens);
}

std::int64_t bytes_for_sequence(const KVCacheSpec& spec, std::int64_t num_tokens,
                                std::int64_t step_tokens) {
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(spec.slots_for_sequence(num_tokens, step_tokens),
                             static_cast<std::int64_t>(spec.slot_bytes()), &bytes)) {
    return std::numeric_limits<std::int64_t>::max();
  }
  return bytes;
}

}  // namespace karez
