#include "remote/export_memory.h"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "base/check.h"
#include "remote/export_memory_impl.h"

namespace karez {

namespace {

constexpr const char* kSharedMemoryFolder = "/dev/shm";

std::uint64_t room_in_shared_memory() {
  struct statvfs room = {};
  return statvfs(kSharedMemoryFolder, &room) == 0 ? room.f_bavail * room.f_frsize : 0;
}

}  // namespace

Expected<std::shared_ptr<ExportMemory>> ExportMemory::create(std::size_t bytes,
                                                             const ExportMemoryOptions& options) {
  KAREZ_CHECK(bytes > 0, "exported memory has at least one byte");
  Expected<Arena> arena = Arena::create(bytes);  // also says whether the machine has so much
  if (!arena) {
    return fail(arena.error());
  }
  auto impl = std::make_unique<Impl>();
  if (!options.share) {
    impl->why_private = "it was not asked for";
  } else if (std::optional<Status> problem = impl->share(bytes)) {
    impl->why_private = problem->message();
  }
  if (!impl->shared) {
    impl->private_memory.emplace(std::move(*arena));
  }
  return std::shared_ptr<ExportMemory>(new ExportMemory(std::move(impl)));
}

std::optional<Status> ExportMemory::Impl::share(std::size_t bytes) {
  // UCX would fill it before it says so.
  const std::uint64_t room = room_in_shared_memory();
  if (room < bytes) {
    return Status(StatusCode::kResourceExhausted, fmt::format("{} has {} bytes left, needed are {}",
                                                              kSharedMemoryFolder, room, bytes));
  }
  Expected<std::shared_ptr<UcxContext>> context =
      UcxContext::create(UCP_FEATURE_RMA, kSharedMemoryTransport, kSharedMemoryAllocator);
  if (!context) {
    return context.error();
  }
  Expected<std::unique_ptr<UcxWorker>> made_worker = UcxWorker::create(*context);
  if (!made_worker) {
    return made_worker.error();
  }
  Expected<std::vector<std::byte>> made_address = (*made_worker)->address();
  if (!made_address) {
    return made_address.error();
  }
  // UCX writes all of it before it maps it, so that each page has its room from now on.
  Expected<std::unique_ptr<UcxMemory>> memory = UcxMemory::allocate(*context, bytes);
  if (!memory) {  // another process was faster
    return Status(memory.error().code(),
                  fmt::format("{} had {} bytes left, needed are {}: {}", kSharedMemoryFolder, room,
                              bytes, memory.error().message()));
  }
  Expected<std::vector<std::byte>> made_key = (*memory)->packed_key();
  if (!made_key) {
    return made_key.error();
  }
  worker = std::move(*made_worker);
  worker_address = std::move(*made_address);
  key = std::move(*made_key);
  shared = std::move(*memory);
  return std::nullopt;
}

ExportMemory::ExportMemory(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ExportMemory::~ExportMemory() = default;

std::span<std::byte> ExportMemory::bytes() const {
  return impl_->shared ? impl_->shared->bytes() : impl_->private_memory->bytes();
}

Arena ExportMemory::arena(std::shared_ptr<ExportMemory> memory) {
  const std::span<std::byte> bytes = memory->bytes();
  return Arena::borrow(bytes, std::move(memory));
}

bool ExportMemory::is_shared() const { return impl_->shared != nullptr; }
const std::string& ExportMemory::why_private() const { return impl_->why_private; }

}  // namespace karez
