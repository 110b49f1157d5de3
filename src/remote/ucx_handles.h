// UCX's objects with owners: context, worker, memory that others may reach.
//
// Thread: a context from any; a worker and what belongs to it from one thread at a time.
// Ownership: each keeps what it is made of.
#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace karez {

// kIoError: "what: UCX's words".
Status ucx_failure(std::string_view what, ucs_status_t status);

class UcxContext {
 public:
  // features: UCP_FEATURE_*. transports: UCX's UCX_TLS; allocators: of UcxMemory::allocate(), UCX's
  // UCX_ALLOC_PRIO; empty: its own choice.
  static Expected<std::shared_ptr<UcxContext>> create(std::uint64_t features,
                                                      const std::string& transports,
                                                      const std::string& allocators = "");
  ~UcxContext();
  UcxContext(const UcxContext&) = delete;
  UcxContext& operator=(const UcxContext&) = delete;

  ucp_context_h handle() const { return handle_; }

 private:
  explicit UcxContext(ucp_context_h handle) : handle_(handle) {}
  ucp_context_h handle_;
};

class UcxWorker {
 public:
  static Expected<std::unique_ptr<UcxWorker>> create(std::shared_ptr<UcxContext> context);
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  ucp_worker_h handle() const { return handle_; }
  const std::shared_ptr<UcxContext>& context() const { return context_; }
  Expected<std::vector<std::byte>> address() const;

 private:
  UcxWorker(std::shared_ptr<UcxContext> context, ucp_worker_h handle)
      : context_(std::move(context)), handle_(handle) {}
  std::shared_ptr<UcxContext> context_;
  ucp_worker_h handle_;
};

// Memory that the remote key gives access to.
class UcxMemory {
 public:
  // New memory of the context's allocators; with UCX's own choice it may be such that no transport
  // can share.
  static Expected<std::unique_ptr<UcxMemory>> allocate(std::shared_ptr<UcxContext> context,
                                                       std::size_t bytes);
  // Memory that is there, and outlives this.
  static Expected<std::unique_ptr<UcxMemory>> expose(std::shared_ptr<UcxContext> context,
                                                     std::span<std::byte> bytes);
  ~UcxMemory();
  UcxMemory(const UcxMemory&) = delete;
  UcxMemory& operator=(const UcxMemory&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }
  Expected<std::vector<std::byte>> packed_key() const;

 private:
  UcxMemory(std::shared_ptr<UcxContext> context, ucp_mem_h handle, std::span<std::byte> bytes)
      : context_(std::move(context)), handle_(handle), bytes_(bytes) {}
  static Expected<std::unique_ptr<UcxMemory>> map(std::shared_ptr<UcxContext> context,
                                                  const ucp_mem_map_params_t& params);
  std::shared_ptr<UcxContext> context_;
  ucp_mem_h handle_;
  std::span<std::byte> bytes_;
};

}  // namespace karez
