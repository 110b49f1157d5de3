#include "remote/ucx_handles.h"

#include <fmt/format.h>
#include <ucs/config/global_opts.h>

namespace karez {

Status ucx_failure(std::string_view what, ucs_status_t status) {
  return {StatusCode::kIoError, fmt::format("{}: UCX says: {}", what, ucs_status_string(status))};
}

Expected<std::shared_ptr<UcxContext>> UcxContext::create(std::uint64_t features,
                                                         const std::string& transports,
                                                         const std::string& allocators) {
  // About variables that other contexts use; it would write it on the program's standard output.
  ucs_global_opts_set_value("WARN_UNUSED_ENV_VARS", "n");
  ucp_config_t* config = nullptr;
  if (const ucs_status_t status = ucp_config_read(nullptr, nullptr, &config); status != UCS_OK) {
    return fail(ucx_failure("UCX's configuration cannot be read", status));
  }
  if (!transports.empty()) {
    const ucs_status_t status = ucp_config_modify(config, "TLS", transports.c_str());
    if (status != UCS_OK) {
      ucp_config_release(config);
      return fail(StatusCode::kInvalidArgument, fmt::format("UCX takes no transports '{}': {}",
                                                            transports, ucs_status_string(status)));
    }
  }
  if (!allocators.empty()) {
    const ucs_status_t status = ucp_config_modify(config, "ALLOC_PRIO", allocators.c_str());
    if (status != UCS_OK) {
      ucp_config_release(config);
      return fail(StatusCode::kInvalidArgument, fmt::format("UCX takes no allocators '{}': {}",
                                                            allocators, ucs_status_string(status)));
    }
  }
  ucp_params_t params = {};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
  params.features = features;
  params.mt_workers_shared = 0;
  ucp_context_h handle = nullptr;
  const ucs_status_t status = ucp_init(&params, config, &handle);
  ucp_config_release(config);
  if (status != UCS_OK) {
    return fail(ucx_failure(fmt::format("no transport among '{}'", transports), status));
  }
  return std::shared_ptr<UcxContext>(new UcxContext(handle));
}

UcxContext::~UcxContext() { ucp_cleanup(handle_); }

Expected<std::unique_ptr<UcxWorker>> UcxWorker::create(std::shared_ptr<UcxContext> context) {
  ucp_worker_params_t params = {};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ucp_worker_h handle = nullptr;
  const ucs_status_t status = ucp_worker_create(context->handle(), &params, &handle);
  if (status != UCS_OK) {
    return fail(ucx_failure("a worker cannot be made", status));
  }
  return std::unique_ptr<UcxWorker>(new UcxWorker(std::move(context), handle));
}

UcxWorker::~UcxWorker() { ucp_worker_destroy(handle_); }

Expected<std::vector<std::byte>> UcxWorker::address() const {
  ucp_address_t* address = nullptr;
  std::size_t size = 0;
  const ucs_status_t status = ucp_worker_get_address(handle_, &address, &size);
  if (status != UCS_OK) {
    return fail(ucx_failure("a worker has no address", status));
  }
  const auto* bytes = reinterpret_cast<const std::byte*>(address);
  std::vector<std::byte> copy(bytes, bytes + size);
  ucp_worker_release_address(handle_, address);
  return copy;
}

Expected<std::unique_ptr<UcxMemory>> UcxMemory::allocate(std::shared_ptr<UcxContext> context,
                                                         std::size_t bytes) {
  ucp_mem_map_params_t params = {};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS;
  params.length = bytes;
  params.flags = UCP_MEM_MAP_ALLOCATE | UCP_MEM_MAP_NONBLOCK;
  return map(std::move(context), params);
}

Expected<std::unique_ptr<UcxMemory>> UcxMemory::expose(std::shared_ptr<UcxContext> context,
                                                       std::span<std::byte> bytes) {
  ucp_mem_map_params_t params = {};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
  params.address = bytes.data();
  params.length = bytes.size();
  return map(std::move(context), params);
}

Expected<std::unique_ptr<UcxMemory>> UcxMemory::map(std::shared_ptr<UcxContext> context,
                                                    const ucp_mem_map_params_t& params) {
  ucp_mem_h handle = nullptr;
  ucs_status_t status = ucp_mem_map(context->handle(), &params, &handle);
  if (status != UCS_OK) {
    return fail(ucx_failure(fmt::format("{} bytes cannot be exposed", params.length), status));
  }
  ucp_mem_attr_t attributes = {};
  attributes.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS | UCP_MEM_ATTR_FIELD_LENGTH;
  status = ucp_mem_query(handle, &attributes);
  if (status != UCS_OK) {
    ucp_mem_unmap(context->handle(), handle);
    return fail(ucx_failure("exposed memory has no address", status));
  }
  const std::span<std::byte> bytes(static_cast<std::byte*>(attributes.address), params.length);
  return std::unique_ptr<UcxMemory>(new UcxMemory(std::move(context), handle, bytes));
}

UcxMemory::~UcxMemory() { ucp_mem_unmap(context_->handle(), handle_); }

Expected<std::vector<std::byte>> UcxMemory::packed_key() const {
  void* key = nullptr;
  std::size_t size = 0;
  const ucs_status_t status = ucp_rkey_pack(context_->handle(), handle_, &key, &size);
  if (status != UCS_OK) {
    return fail(ucx_failure("exposed memory has no key", status));
  }
  const auto* bytes = static_cast<const std::byte*>(key);
  std::vector<std::byte> copy(bytes, bytes + size);
  ucp_rkey_buffer_release(key);
  return copy;
}

}  // namespace karez
