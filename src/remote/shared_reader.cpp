#include "remote/shared_reader.h"

#include <chrono>
#include <cstring>
#include <utility>

#include "kv/tier/home_space.h"
#include "remote/export_memory_impl.h"

namespace karez {

SharedReader::Peer::~Peer() {
  memory_.reset();
  const ucp_request_param_t param = {};
  void* request = ucp_ep_close_nbx(endpoint_, &param);
  if (!UCS_PTR_IS_PTR(request)) {
    return;
  }
  // Nothing is under way, so that it ends at once.
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
  while (ucp_request_check_status(request) == UCS_INPROGRESS &&
         std::chrono::steady_clock::now() < end) {
    ucp_worker_progress(worker_);
  }
  ucp_request_free(request);
}

Expected<std::unique_ptr<SharedReader>> SharedReader::create(std::size_t block_bytes) {
  Expected<std::shared_ptr<UcxContext>> context =
      UcxContext::create(UCP_FEATURE_RMA, kSharedMemoryTransport);
  if (!context) {
    return fail(context.error());
  }
  Expected<std::unique_ptr<UcxWorker>> worker = UcxWorker::create(*context);
  if (!worker) {
    return fail(worker.error());
  }
  return std::unique_ptr<SharedReader>(new SharedReader(std::move(*worker), block_bytes));
}

SharedReader::SharedReader(std::unique_ptr<UcxWorker> worker, std::size_t block_bytes)
    : worker_(std::move(worker)), block_bytes_(block_bytes), buffer_(block_bytes * kExtentBlocks) {}

SharedReader::~SharedReader() {
  if (is_lost_) {
    // It may be written as long as the process lives.
    static_cast<void>(new std::vector<std::byte>(std::move(buffer_)));
  }
}

Expected<std::unique_ptr<SharedReader::Peer>> SharedReader::attach(const ReadyMessage& ready) {
  if (ready.shared_worker.empty() || ready.shared_key.empty() ||
      ready.memory_bytes < block_bytes_) {
    return fail(StatusCode::kIoError, "the peer offers no shared memory");
  }
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
  params.address = reinterpret_cast<const ucp_address_t*>(ready.shared_worker.data());
  ucp_ep_h endpoint = nullptr;
  const ucs_status_t status = ucp_ep_create(worker_->handle(), &params, &endpoint);
  if (status != UCS_OK) {
    return fail(ucx_failure("the peer's memory is not shared with this process", status));
  }
  auto peer = std::make_unique<Peer>(worker_->handle(), endpoint);
  Expected<std::unique_ptr<UcxRemoteMemory>> memory =
      UcxRemoteMemory::create(endpoint, ready.shared_key, ready.memory_address, ready.memory_bytes);
  if (!memory) {
    return fail(memory.error());
  }
  peer->memory_ = std::move(*memory);
  // A key without a mapping shows at the first read only.
  const Expected<bool> works = get(*peer, 0, block_bytes_);
  if (!works) {
    return fail(works.error());
  }
  return peer;
}

Expected<bool> SharedReader::get(Peer& peer, std::uint64_t offset, std::size_t bytes) {
  if (is_lost_) {
    return fail(StatusCode::kUnimplemented, "shared memory has failed before");
  }
  const ucs_status_ptr_t request = peer.memory_->get(offset, bytes, buffer_.data());
  if (request == nullptr) {
    return true;
  }
  if (UCS_PTR_IS_ERR(request)) {
    return fail(StatusCode::kUnimplemented,
                ucx_failure("shared memory cannot be read", UCS_PTR_STATUS(request)).message());
  }
  is_lost_ = true;
  return fail(StatusCode::kUnimplemented, "shared memory cannot be read at once");
}

Expected<TransferStatus> SharedReader::read(Peer& peer, const RemoteRead& read) {
  const auto num_blocks = static_cast<std::size_t>(read.num_blocks);
  std::size_t run = 0;
  for (std::size_t first = 0; first < num_blocks; first += run) {
    const std::uint64_t offset = read.blocks[first].offset;
    run = 1;
    while (first + run < num_blocks && !read.blocks[first].is_absent() &&
           read.blocks[first + run].offset == offset + run * block_bytes_) {
      ++run;
    }
    if (!peer.memory_->contains(offset, run * block_bytes_)) {
      return TransferStatus::kChecksumMismatch;  // absent, or the manifest is wrong
    }
    const Expected<bool> got = get(peer, offset, run * block_bytes_);
    if (!got) {
      return fail(got.error());
    }
    for (std::size_t i = 0; i < run; ++i) {
      const std::byte* bytes = buffer_.data() + i * block_bytes_;
      if (block_checksum(bytes, block_bytes_) != read.blocks[first + i].checksum) {
        return TransferStatus::kChecksumMismatch;
      }
      std::memcpy(read.memory[first + i], bytes, block_bytes_);
    }
  }
  return TransferStatus::kOk;
}

}  // namespace karez
