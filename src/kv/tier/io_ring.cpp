#include "kv/tier/io_ring.h"

#include <fmt/format.h>

#include <cerrno>
#include <system_error>

namespace karez {

Expected<IoRing> make_io_ring(int entries) {
  auto ring = std::make_unique<io_uring>();
  const int error = -io_uring_queue_init(static_cast<unsigned>(entries), ring.get(), 0);
  if (error == 0) {
    IoRing made(ring.release());
    if ((made->features & IORING_FEAT_EXT_ARG) == 0) {
      return fail(StatusCode::kUnavailable,
                  "io_uring: waiting with a time limit is missing; the disk tier needs Linux 5.11 "
                  "or later");
    }
    return made;
  }
  const std::string reason = std::generic_category().message(error);
  switch (error) {
    case ENOSYS:
      return fail(
          StatusCode::kUnavailable,
          fmt::format("io_uring: {}; the disk tier needs Linux 5.11 or later, with io_uring "
                      "built in",
                      reason));
    case EPERM:
    case EACCES:
      return fail(StatusCode::kUnavailable,
                  fmt::format("io_uring: {}; the disk tier needs it. The sysctl "
                              "kernel.io_uring_disabled must be 0, and a container's seccomp "
                              "profile must allow io_uring_setup, io_uring_enter and "
                              "io_uring_register",
                              reason));
    default:
      return fail(StatusCode::kResourceExhausted,
                  fmt::format("io_uring: no ring with {} entries: {}", entries, reason));
  }
}

}  // namespace karez
