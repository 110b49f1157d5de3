// RemoteBlock: where a block lies in the memory of the node that exports it, and what it must hold.
//
// Thread: values.
#pragma once

#include <cstdint>

namespace karez {

struct RemoteBlock {
  // The other node does not have it: outside a window, or never written.
  static constexpr std::uint64_t kAbsent = ~std::uint64_t{0};

  std::uint64_t offset = kAbsent;  // bytes from the start of the exported memory
  std::uint64_t checksum = 0;      // block_checksum() of its bytes

  std::uint32_t index = 0;  // in the manifest; set where it is received

  bool is_absent() const { return offset == kAbsent; }
  friend bool operator==(const RemoteBlock&, const RemoteBlock&) = default;
};

}  // namespace karez
