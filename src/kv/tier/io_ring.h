// An io_uring that lives as long as this object. Only src/kv/tier sees liburing.
//
// Thread: one. Owns: the ring, its mappings and its descriptor.
#pragma once

#include <liburing.h>

#include <memory>

#include "base/status.h"

namespace karez {

struct IoRingDeleter {
  void operator()(io_uring* ring) const {
    io_uring_queue_exit(ring);
    delete ring;
  }
};
using IoRing = std::unique_ptr<io_uring, IoRingDeleter>;

// Fails: kUnavailable if the kernel has no io_uring or forbids it; kResourceExhausted if it has no
// room for this one.
Expected<IoRing> make_io_ring(int entries);

}  // namespace karez
