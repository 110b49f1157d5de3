// UcxNetwork: one-sided reads over whatever network UCX finds: for RDMA. Both sides use it, the one
// that exposes memory and the one that reads.
//
// UCX lets everybody who reaches its ports read and write the process, so it is there only if asked
// for.
// Thread: one at a time. Owns: the worker, what was exposed, endpoints.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "remote/ucx_handles.h"
#include "remote/ucx_remote_memory.h"

namespace karez {

class UcxNetwork {
 public:
  // A peer, as the side that reads sees it.
  class Peer {
   public:
    ~Peer();
    Peer(const Peer&) = delete;
    Peer& operator=(const Peer&) = delete;
    bool is_broken() const { return is_broken_; }
    UcxRemoteMemory& memory() { return *memory_; }

   private:
    friend class UcxNetwork;
    explicit Peer(UcxNetwork& network) : network_(network) {}
    static void failed(void* self, ucp_ep_h endpoint, ucs_status_t status);
    UcxNetwork& network_;
    ucp_ep_h endpoint_ = nullptr;
    std::unique_ptr<UcxRemoteMemory> memory_;
    bool is_broken_ = false;
  };

  static Expected<std::unique_ptr<UcxNetwork>> create(const std::string& transports);
  ~UcxNetwork();
  UcxNetwork(const UcxNetwork&) = delete;
  UcxNetwork& operator=(const UcxNetwork&) = delete;

  // Once; the memory outlives this.
  std::optional<Status> expose(std::span<std::byte> memory);
  const std::vector<std::byte>& address() const { return address_; }
  const std::vector<std::byte>& key() const { return key_; }

  // Peers go before this does. Over TCP it waits for connect(), two minutes for a machine that does
  // not answer, unless UCX_TCP_CONN_NB=y is in the environment (UCX 1.13).
  Expected<std::unique_ptr<Peer>> connect(std::span<const std::byte> address,
                                          std::span<const std::byte> key,
                                          std::uint64_t memory_address, std::uint64_t memory_bytes);

  void progress();
  // descriptor() is readable when progress() has something to do, once this has said true. False:
  // it has something to do now.
  bool arm();
  int descriptor() const { return descriptor_; }

 private:
  UcxNetwork(std::unique_ptr<UcxWorker> worker, int descriptor)
      : worker_(std::move(worker)), descriptor_(descriptor) {}
  void finish_closing();

  std::unique_ptr<UcxWorker> worker_;
  int descriptor_;
  std::unique_ptr<UcxMemory> exposed_;
  std::vector<std::byte> address_;
  std::vector<std::byte> key_;
  std::vector<void*> closing_;  // requests of UCX
};

}  // namespace karez
