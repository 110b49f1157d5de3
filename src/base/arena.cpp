#include "base/arena.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cstdint>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/system_memory.h"

namespace karez {

namespace {
constexpr std::size_t kHugePageBytes = 2U << 20U;
}

Expected<Arena> Arena::create(std::size_t bytes) {
  KAREZ_CHECK(bytes > 0, "an arena has at least one byte");
  // Mapping more would succeed, because pages are handed out on first touch, and end in a kill.
  const std::int64_t limit = memory_limit_bytes();
  if (bytes > static_cast<std::size_t>(limit)) {
    return fail(StatusCode::kResourceExhausted,
                fmt::format("{} bytes of memory are asked for, this machine or container has {} "
                            "({})",
                            bytes, limit, format_bytes(limit)));
  }
  // One huge page more than asked for, so that the part handed out can start at a huge page.
  const std::size_t mapping_size = bytes + kHugePageBytes;
  void* mapping = mmap(nullptr, mapping_size, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) {
    return fail(StatusCode::kResourceExhausted,
                fmt::format("the system refused a mapping of {}",
                            format_bytes(static_cast<std::int64_t>(bytes))));
  }
  const auto address = reinterpret_cast<std::uintptr_t>(mapping);
  const std::size_t offset = (kHugePageBytes - address % kHugePageBytes) % kHugePageBytes;
  std::byte* data = static_cast<std::byte*>(mapping) + offset;
  // Only a hint: a kernel without transparent huge pages gives ordinary ones.
  static_cast<void>(madvise(data, bytes, MADV_HUGEPAGE));
  return Arena(mapping, mapping_size, data, bytes);
}

Arena Arena::borrow(std::span<std::byte> bytes, std::shared_ptr<void> owner) {
  Arena arena(nullptr, 0, bytes.data(), bytes.size());
  arena.owner_ = std::move(owner);
  return arena;
}

Arena::Arena(Arena&& other) noexcept
    : mapping_(std::exchange(other.mapping_, nullptr)),
      mapping_size_(std::exchange(other.mapping_size_, 0)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      owner_(std::move(other.owner_)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(mapping_, other.mapping_);
  std::swap(mapping_size_, other.mapping_size_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(owner_, other.owner_);
  return *this;
}

Arena::~Arena() {
  if (mapping_ != nullptr) {
    munmap(mapping_, mapping_size_);
  }
}

}  // namespace karez
