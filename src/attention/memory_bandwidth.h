// How fast this machine can read memory: the yardstick for attention over long contexts.
//
// Thread: starts its own threads; nothing else should run meanwhile.
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "base/status.h"

namespace karez {

// Bigger than the last-level caches of today's servers, so that passes read memory.
inline constexpr std::int64_t kBandwidthBufferBytes = kGiB;

// Bytes a second of num_threads threads that read a buffer of buffer_bytes once together, each
// its own part front to back; the best of num_passes. Huge pages where the system grants them.
// Fails: kInvalidArgument for arguments below 1, kResourceExhausted if there is no such memory.
Expected<double> measure_read_bandwidth(int num_threads,
                                        std::int64_t buffer_bytes = kBandwidthBufferBytes,
                                        int num_passes = 3);

}  // namespace karez
