#include "remote/ucx_remote_memory.h"

#include "base/check.h"

namespace karez {

Expected<std::unique_ptr<UcxRemoteMemory>> UcxRemoteMemory::create(ucp_ep_h endpoint,
                                                                   std::span<const std::byte> key,
                                                                   std::uint64_t address,
                                                                   std::uint64_t bytes) {
  ucp_rkey_h handle = nullptr;
  const ucs_status_t status = ucp_ep_rkey_unpack(endpoint, key.data(), &handle);
  if (status != UCS_OK) {
    return fail(ucx_failure("a peer's memory cannot be reached", status));
  }
  return std::unique_ptr<UcxRemoteMemory>(new UcxRemoteMemory(endpoint, handle, address, bytes));
}

UcxRemoteMemory::~UcxRemoteMemory() { ucp_rkey_destroy(key_); }

ucs_status_ptr_t UcxRemoteMemory::get(std::uint64_t offset, std::size_t bytes, std::byte* to) {
  KAREZ_CHECK(contains(offset, bytes), "a read stays in the peer's memory");
  ucp_request_param_t param = {};
  return ucp_get_nbx(endpoint_, to, bytes, address_ + offset, key_, &param);
}

}  // namespace karez
