// UcxRemoteMemory: a peer's exposed memory, for one-sided reads through an endpoint.
//
// Thread: that of the endpoint's worker. Owns: the unpacked key; must go before the endpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/status.h"
#include "remote/ucx_handles.h"

namespace karez {

class UcxRemoteMemory {
 public:
  // [address, address + bytes) is in the peer's process.
  static Expected<std::unique_ptr<UcxRemoteMemory>> create(ucp_ep_h endpoint,
                                                           std::span<const std::byte> key,
                                                           std::uint64_t address,
                                                           std::uint64_t bytes);
  ~UcxRemoteMemory();
  UcxRemoteMemory(const UcxRemoteMemory&) = delete;
  UcxRemoteMemory& operator=(const UcxRemoteMemory&) = delete;

  bool contains(std::uint64_t offset, std::uint64_t bytes) const {
    return bytes <= bytes_ && offset <= bytes_ - bytes;
  }
  // UCX's answer: null if the bytes are there, an error, or a request: then `to` is UCX's until it
  // has completed. Requires: contains(offset, bytes).
  ucs_status_ptr_t get(std::uint64_t offset, std::size_t bytes, std::byte* to);

 private:
  UcxRemoteMemory(ucp_ep_h endpoint, ucp_rkey_h key, std::uint64_t address, std::uint64_t bytes)
      : endpoint_(endpoint), key_(key), address_(address), bytes_(bytes) {}
  ucp_ep_h endpoint_;
  ucp_rkey_h key_;
  std::uint64_t address_;
  std::uint64_t bytes_;
};

}  // namespace karez
