// NetworkReader: one-sided reads over the network from one peer, into buffers of its own: UCX
// cannot promise that it lets go of memory in time.
//
// Thread: one, that of the network. Owns: buffers, until UCX has ended with them.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "remote/peer_pool.h"
#include "remote/ucx_network.h"

namespace karez {

class NetworkReader {
 public:
  NetworkReader(std::unique_ptr<UcxNetwork::Peer> peer, std::size_t block_bytes)
      : peer_(std::move(peer)), block_bytes_(block_bytes) {}
  // Ends the connection, and with it UCX's requests.
  ~NetworkReader();
  NetworkReader(const NetworkReader&) = delete;
  NetworkReader& operator=(const NetworkReader&) = delete;

  void read(const RemoteRead& read, Clock::TimePoint deadline);
  // After the network has moved on. Appends results.
  void poll(Clock::TimePoint now, PeerPoolStats& stats, std::vector<RemoteReadResult>& results);
  void fail_all(TransferStatus status, std::vector<RemoteReadResult>& results);
  void fail_reads_of(LeaseId lease, TransferStatus status, std::vector<RemoteReadResult>& results);
  Clock::TimePoint next_deadline() const;
  // A read has come too late, and none has ended since it was asked for: until one does, nothing
  // more should be asked.
  bool is_silent() const { return is_silent_; }

 private:
  struct Read {
    RemoteRead read;
    Clock::TimePoint deadline;
    std::uint64_t answers_before = 0;
    std::vector<std::byte> buffer;
    std::vector<void*> requests;  // of UCX, not ended
    bool has_failed = false;
    bool is_reported = false;
  };
  void start(Read& started);
  void take_ended_requests(Read& read);
  void report_late(Read& late, std::vector<RemoteReadResult>& results);
  TransferStatus verify(const Read& ended) const;
  static void report(Read& ended, TransferStatus status, std::vector<RemoteReadResult>& results);

  std::unique_ptr<UcxNetwork::Peer> peer_;
  std::size_t block_bytes_;
  std::uint64_t answers_ = 0;
  bool is_silent_ = false;
  std::deque<Read> waiting_;
  std::deque<Read> started_;
};

}  // namespace karez
