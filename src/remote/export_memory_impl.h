// What UCX knows of ExportMemory: for the exporter, which tells consumers.
//
// The worker is never moved along. Shared memory needs no help of its owner to be read, and
// messages that somebody leaves there are not looked at. Thread: as ExportMemory. Owns: the memory.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "remote/export_memory.h"
#include "remote/ucx_handles.h"

namespace karez {

// The one that maps the other's memory; UCX's endpoints of it see no failures, and need not: a
// mapping outlives the process that made it.
inline constexpr const char* kSharedMemoryTransport = "posix";
// Without it UCX takes private memory where /dev/shm has no room, and says nothing.
inline constexpr const char* kSharedMemoryAllocator = "md:posix";

class ExportMemory::Impl {
 public:
  std::optional<Status> share(std::size_t bytes);

  std::optional<Arena> private_memory;
  std::unique_ptr<UcxWorker> worker;
  std::unique_ptr<UcxMemory> shared;  // null: private
  std::vector<std::byte> worker_address;
  std::vector<std::byte> key;
  std::string why_private;
};

}  // namespace karez
