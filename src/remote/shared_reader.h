// SharedReader: reads blocks of exporters on this machine out of the memory that they share.
//
// The reads are UCX's one-sided ones, and are done when the call returns: a copy out of a mapping.
// The exporter takes no part, and may be dead.
// Thread: one. Owns: the mappings of all peers, one buffer.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "remote/peer_pool.h"
#include "remote/ucx_handles.h"
#include "remote/ucx_remote_memory.h"
#include "remote/wire_messages.h"

namespace karez {

class SharedReader {
 public:
  class Peer {
   public:
    Peer(ucp_worker_h worker, ucp_ep_h endpoint) : worker_(worker), endpoint_(endpoint) {}
    ~Peer();
    Peer(const Peer&) = delete;
    Peer& operator=(const Peer&) = delete;

   private:
    friend class SharedReader;
    ucp_worker_h worker_;
    ucp_ep_h endpoint_;
    std::unique_ptr<UcxRemoteMemory> memory_;
  };

  // Fails: kIoError if this machine has no such memory.
  static Expected<std::unique_ptr<SharedReader>> create(std::size_t block_bytes);
  ~SharedReader();

  // Fails: kIoError if the peer offers none, or it is another machine's.
  Expected<std::unique_ptr<Peer>> attach(const ReadyMessage& ready);
  // kUnimplemented in place of a status: the way does not work after all, use another; nothing was
  // written.
  Expected<TransferStatus> read(Peer& peer, const RemoteRead& read);

 private:
  SharedReader(std::unique_ptr<UcxWorker> worker, std::size_t block_bytes);
  Expected<bool> get(Peer& peer, std::uint64_t offset, std::size_t bytes);

  std::unique_ptr<UcxWorker> worker_;
  std::size_t block_bytes_;
  std::vector<std::byte> buffer_;
  bool is_lost_ = false;  // UCX has a request for the buffer that will not end
};

}  // namespace karez
