#include "kv/block_pool.h"

#include <fmt/format.h>

#include <utility>

#include "base/bytes.h"
#include "base/check.h"

namespace karez {

Expected<BlockPool> BlockPool::create(std::size_t slot_bytes, std::int64_t cap_bytes) {
  KAREZ_CHECK(slot_bytes > 0 && slot_bytes % 64 == 0, "slots are whole cache lines");
  const auto signed_slot_bytes = static_cast<std::int64_t>(slot_bytes);
  const std::int64_t num_slots = cap_bytes / signed_slot_bytes;
  if (num_slots < 1) {
    return fail(StatusCode::kResourceExhausted,
                fmt::format("the KV cap is {} bytes, one KV slot alone needs {} bytes", cap_bytes,
                            slot_bytes));
  }
  constexpr std::int64_t kMaxSlots = SlotId::kNoneValue;  // ids 0 .. kNoneValue - 1
  if (num_slots > kMaxSlots) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("the KV cap is {} bytes, which is {} slots of {} bytes; allowed are at "
                            "most {} slots",
                            cap_bytes, num_slots, slot_bytes, kMaxSlots));
  }
  auto arena = Arena::create(static_cast<std::size_t>(num_slots) * slot_bytes);
  if (!arena) {
    return fail(arena.error().code(), fmt::format("the KV cap is {}: {}", format_bytes(cap_bytes),
                                                  arena.error().message()));
  }
  return BlockPool(std::move(*arena), slot_bytes, num_slots);
}

BlockPool::BlockPool(Arena arena, std::size_t slot_bytes, std::int64_t num_slots)
    : arena_(std::move(arena)),
      base_(arena_.bytes().data()),
      slot_bytes_(slot_bytes),
      free_(num_slots) {}

bool BlockPool::allocate(std::span<SlotId> out) {
  if (static_cast<std::int64_t>(out.size()) > num_free()) {
    return false;
  }
  for (SlotId& slot : out) {
    slot = SlotId(free_.take());
  }
  return true;
}

}  // namespace karez
