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
  // patience: how long a peer may say nothing while it is asked.
  NetworkReader(std::unique_ptr<UcxNetwork::Peer> peer, std::size_t block_bytes,
                Clock::Duration patience, Clock::TimePoint now)
      : peer_(std::move(peer)), block_bytes_(block_bytes), patience_(patience), last_poll_(now) {}
  // Ends the connection, and with it UCX's requests.
  ~NetworkReader();
  NetworkReader(const NetworkReader&) = delete;
  NetworkReader& operator=(const NetworkReader&) = delete;

  void read(const RemoteRead& read);
  // After the network has moved on. Appends results. Time in which nobody polled, beyond kPollStep,
  // is not the peer's.
  void poll(Clock::TimePoint now, PeerPoolStats& stats, std::vector<RemoteReadResult>& results);
  void fail_all(TransferStatus status, std::vector<RemoteReadResult>& results);
  void fail_reads_of(LeaseId lease, TransferStatus status, std::vector<RemoteReadResult>& results);
  // When poll() should be called at the latest.
  Clock::TimePoint next_poll() const;
  // The connection has failed, or the peer was silent for too long: another way must be taken.
  bool is_lost() const { return peer_->is_broken() || silence_ >= patience_; }
  // Appends those without a result, which will have none.
  void take_back(std::vector<RemoteRead>& reads);

  static constexpr Clock::Duration kPollStep = std::chrono::seconds(1);

 private:
  struct Read {
    RemoteRead read;
    std::vector<std::byte> buffer;
    std::vector<void*> requests;  // of UCX, not ended
    bool has_failed = false;
    bool is_reported = false;
  };
  void start(Read& started);
  void take_ended_requests(Read& read);
  bool is_asking() const;
  TransferStatus verify(const Read& ended) const;
  static void report(Read& ended, TransferStatus status, std::vector<RemoteReadResult>& results);

  std::unique_ptr<UcxNetwork::Peer> peer_;
  std::size_t block_bytes_;
  Clock::Duration patience_;
  Clock::TimePoint last_poll_;
  Clock::Duration silence_ = {};  // since it was asked or has answered
  bool has_heard_ = false;        // since the last poll
  std::deque<Read> waiting_;
  std::deque<Read> started_;
};

}  // namespace karez
