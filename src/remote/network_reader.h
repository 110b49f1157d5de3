// NetworkReader: one-sided reads over the network from one peer, into buffers of its own: UCX
// cannot promise that it lets go of memory in time.
//
// Thread: one, that of the messenger. Owns: buffers, until UCX has ended with them.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "remote/peer_pool.h"
#include "remote/ucx_remote_memory.h"

namespace karez {

class NetworkReader {
 public:
  NetworkReader(std::unique_ptr<UcxRemoteMemory> memory, std::size_t block_bytes)
      : memory_(std::move(memory)), block_bytes_(block_bytes) {}
  ~NetworkReader();
  NetworkReader(const NetworkReader&) = delete;
  NetworkReader& operator=(const NetworkReader&) = delete;

  void read(const RemoteRead& read, Clock::TimePoint deadline);
  // After the messenger has moved on. Appends results.
  void poll(Clock::TimePoint now, PeerPoolStats& stats, std::vector<RemoteReadResult>& results);
  // All reads fail; no UCX call is made from here on, and the endpoint may be closed.
  void stop(TransferStatus status, std::vector<RemoteReadResult>& results);
  void cancel_reads(std::vector<RemoteReadResult>& results);
  void fail_reads_of(LeaseId lease, TransferStatus status, std::vector<RemoteReadResult>& results);
  // UCX has a request for a buffer.
  bool is_busy() const { return !started_.empty(); }
  Clock::TimePoint next_deadline() const;

 private:
  struct Read {
    RemoteRead read;
    Clock::TimePoint deadline;
    std::vector<std::byte> buffer;
    std::vector<void*> requests;  // of UCX, not ended
    bool has_failed = false;
    bool is_reported = false;
  };
  void start(Read& started);
  void fail_all(TransferStatus status, std::vector<RemoteReadResult>& results);
  TransferStatus verify(const Read& ended) const;
  static void report(Read& ended, TransferStatus status, std::vector<RemoteReadResult>& results);

  std::unique_ptr<UcxRemoteMemory> memory_;
  std::size_t block_bytes_;
  std::deque<Read> waiting_;
  std::deque<Read> started_;
};

}  // namespace karez
