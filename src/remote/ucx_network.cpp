#include "remote/ucx_network.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

namespace karez {

namespace {
constexpr auto kCloseTime = std::chrono::milliseconds(500);
constexpr int kMaxRounds = 64;  // of progress at a time
}  // namespace

Expected<std::unique_ptr<UcxNetwork>> UcxNetwork::create(const std::string& transports) {
  Expected<std::shared_ptr<UcxContext>> context =
      UcxContext::create(UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP, transports);
  if (!context) {
    return fail(context.error());
  }
  Expected<std::unique_ptr<UcxWorker>> worker = UcxWorker::create(*context);
  if (!worker) {
    return fail(worker.error());
  }
  Expected<std::vector<std::byte>> address = (*worker)->address();
  if (!address) {
    return fail(address.error());
  }
  int descriptor = -1;
  const ucs_status_t status = ucp_worker_get_efd((*worker)->handle(), &descriptor);
  if (status != UCS_OK) {
    return fail(ucx_failure("a worker cannot be waited for", status));
  }
  std::unique_ptr<UcxNetwork> network(new UcxNetwork(std::move(*worker), descriptor));
  network->address_ = std::move(*address);
  return network;
}

UcxNetwork::~UcxNetwork() {
  const auto end = std::chrono::steady_clock::now() + kCloseTime;
  while (!closing_.empty() && std::chrono::steady_clock::now() < end) {
    progress();
  }
}

std::optional<Status> UcxNetwork::expose(std::span<std::byte> memory) {
  Expected<std::unique_ptr<UcxMemory>> exposed = UcxMemory::expose(worker_->context(), memory);
  if (!exposed) {
    return exposed.error();
  }
  Expected<std::vector<std::byte>> key = (*exposed)->packed_key();
  if (!key) {
    return key.error();
  }
  exposed_ = std::move(*exposed);
  key_ = std::move(*key);
  return std::nullopt;
}

Expected<std::unique_ptr<UcxNetwork::Peer>> UcxNetwork::connect(std::span<const std::byte> address,
                                                                std::span<const std::byte> key,
                                                                std::uint64_t memory_address,
                                                                std::uint64_t memory_bytes) {
  std::unique_ptr<Peer> peer(new Peer(*this));
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = Peer::failed;
  params.err_handler.arg = peer.get();
  const ucs_status_t status = ucp_ep_create(worker_->handle(), &params, &peer->endpoint_);
  if (status != UCS_OK) {
    peer->endpoint_ = nullptr;
    return fail(ucx_failure("the peer's memory cannot be reached", status));
  }
  Expected<std::unique_ptr<UcxRemoteMemory>> memory =
      UcxRemoteMemory::create(peer->endpoint_, key, memory_address, memory_bytes);
  if (!memory) {
    return fail(memory.error());
  }
  peer->memory_ = std::move(*memory);
  return peer;
}

void UcxNetwork::Peer::failed(void* self, ucp_ep_h /*endpoint*/, ucs_status_t /*status*/) {
  static_cast<Peer*>(self)->is_broken_ = true;
}

UcxNetwork::Peer::~Peer() {
  memory_.reset();
  if (endpoint_ == nullptr) {
    return;
  }
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  void* request = ucp_ep_close_nbx(endpoint_, &param);
  if (UCS_PTR_IS_PTR(request)) {
    network_.closing_.push_back(request);
  }
  // From here on UCX may not call failed() any more.
  const auto end = std::chrono::steady_clock::now() + kCloseTime;
  while (!network_.closing_.empty() && std::chrono::steady_clock::now() < end) {
    network_.progress();
  }
}

void UcxNetwork::finish_closing() {
  std::erase_if(closing_, [](void* request) {
    if (ucp_request_check_status(request) == UCS_INPROGRESS) {
      return false;
    }
    ucp_request_free(request);
    return true;
  });
}

void UcxNetwork::progress() {
  // A fast peer must not keep its owner here; what is left keeps arm() from saying true.
  for (int round = 0; round < kMaxRounds; ++round) {
    if (ucp_worker_progress(worker_->handle()) == 0) {
      break;
    }
  }
  finish_closing();
}

bool UcxNetwork::arm() { return closing_.empty() && ucp_worker_arm(worker_->handle()) == UCS_OK; }

}  // namespace karez
