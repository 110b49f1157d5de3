// PeerPool: the consumer's side. Connections to exporters, leases of what was fetched from them,
// and reads of their blocks.
//
// A connection is made by the first fetch from an address, kept, and made anew after it has broken,
// by the next fetch. A lease does not outlive its connection. Heartbeats are sent by poll().
// Nothing here blocks except wait_until(); everything that is asked of a peer has a deadline.
// Thread: one owner thread; no threads of its own, so poll() must be called for things to go on
// (heartbeats: at least every third of a lease).
// Owns: connections, leases, buffers.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/strong_id.h"
#include "base/token.h"
#include "kv/tier/transfer.h"
#include "remote/peer_config.h"
#include "remote/remote_block.h"
#include "remote/request_key.h"

namespace karez {

// Never used twice by a pool.
using LeaseId = StrongId<struct LeaseIdTag>;
using FetchId = StrongId<struct FetchIdTag>;

struct PeerPoolOptions {
  PeerConfig config;
  std::string secret;  // see KvExporterOptions
  // Where the peer is on this machine and offers it. Blocks lie there as they are: with a wire type
  // that is not native they come in messages, whatever this says.
  bool use_shared_memory = true;
  // Likewise; see KvExporterOptions; both sides must have it. A peer whose memory fails this way,
  // or is silent for read_timeout, is read by messages for as long as its connection lives.
  bool one_sided_network = false;
  std::string transports;                                     // see KvExporterOptions
  Clock::Duration connect_timeout = std::chrono::seconds(5);  // to the end of the handshake
  Clock::Duration read_timeout = std::chrono::seconds(5);     // of a block
  std::uint64_t max_index_bytes = std::uint64_t{4} << 30U;    // a manifest with more is refused
};

// Asked for with the lease, or when somebody wants them.
enum class FetchContents : std::uint8_t { kAtOnce, kOnDemand };

struct PeerAddress {
  std::string host;  // an address, not a name
  std::uint16_t port = 0;

  std::string to_string() const;
  friend auto operator<=>(const PeerAddress&, const PeerAddress&) = default;
};

struct Manifest {
  LeaseId lease;  // the caller's to release
  std::uint64_t epoch = 0;
  std::vector<TokenId> tokens;
  std::uint32_t num_blocks = 0;
  std::vector<RemoteBlock> blocks;  // [layers][kv heads][num_blocks]
  std::vector<std::byte> index;     // [layers][kv heads][num_blocks][index_bytes], or empty
  std::vector<std::byte> note;
  std::int64_t bytes_received = 0;  // of the messages it came in

  std::span<const RemoteBlock> blocks_of(const PeerConfig& config, std::uint32_t layer,
                                         std::uint32_t head) const {
    return std::span(blocks).subspan((std::size_t{layer} * config.num_kv_heads + head) * num_blocks,
                                     num_blocks);
  }
};

// Those who read through one pool: each takes its own results.
enum class RemoteReader : std::uint8_t {
  kTier,       // a RemoteTier, for attention
  kAdmission,  // before a request's first step
};

struct RemoteRead {
  std::uint64_t ticket = 0;  // the reader's; comes back with the result
  RemoteReader reader = RemoteReader::kTier;
  LeaseId lease;
  int num_blocks = 0;  // 1 to kExtentBlocks
  std::array<RemoteBlock, kExtentBlocks> blocks = {};
  std::array<std::byte*, kExtentBlocks> memory = {};  // block_bytes each
};

struct RemoteReadResult {
  std::uint64_t ticket = 0;
  RemoteReader reader = RemoteReader::kTier;
  // kOk; kChecksumMismatch: absent, or the bytes are not those of the manifest; kIoError: the peer
  // is gone or its lease has ended; kDeadlinePassed: no answer within read_timeout.
  TransferStatus status = TransferStatus::kOk;
};

struct PeerPoolStats {
  int connections = 0;              // that work, now
  int leases = 0;                   // alive, now
  int fetches = 0;                  // not taken yet, now
  std::int64_t connects = 0;        // handshakes that succeeded
  std::int64_t failures = 0;        // connections that failed, at their start or later
  std::int64_t leases_lost = 0;     // that ended before they were released
  std::int64_t bytes_received = 0;  // bodies of messages, and blocks read one-sided
  std::int64_t blocks_read = 0;
  std::int64_t blocks_read_shared = 0;  // of these, out of shared memory
  std::int64_t reads_failed = 0;
};

class PeerPool {
 public:
  // The clock must outlive it.
  // Fails: kInvalidArgument for an option that cannot be; kIoError if UCX has no transport.
  static Expected<std::unique_ptr<PeerPool>> create(const PeerPoolOptions& options,
                                                    const Clock& clock = Clock::steady());
  // Releases what is leased, as far as peers hear it, and cuts the connections.
  ~PeerPool();

  // Connects if needed, asks for the request, and takes its manifest; take() has the outcome. On
  // demand: has no more than a lease, and no deadline, until fetch_contents(). The lease is kept
  // alive meanwhile; if it ends, so does the fetch.
  FetchId fetch(const PeerAddress& address, const RequestKey& key, std::uint64_t epoch,
                Clock::TimePoint deadline, FetchContents contents = FetchContents::kAtOnce);
  // What its manifest takes in memory; nullopt: it has no lease yet, or is over.
  std::optional<std::size_t> manifest_bytes(FetchId fetch) const;
  // Of a fetch on demand; deadline: a new one. One that is over is fine.
  void fetch_contents(FetchId fetch, Clock::TimePoint deadline);
  // nullopt: not there yet. Else the fetch is over, and its id unknown from here on.
  // Fails: kUnavailable (no connection; the text says why), kInvalidArgument (the peer does not
  // fit, or knows another secret), kNotFound (no such request, it has ended, or has another epoch),
  // kDeadlineExceeded, kCorruption (the peer's messages make no sense).
  std::optional<Expected<Manifest>> take(FetchId fetch);
  // Nobody will take it; what it has leased is released.
  void cancel(FetchId fetch);

  // True: blocks may be read. False: released, expired, or the peer is gone.
  bool is_alive(LeaseId lease) const;
  // Tells the peer that its blocks are not needed any more. Reads that are under way fail with
  // kCancelled. A lease that is dead already is fine.
  void release(LeaseId lease);

  // Takes them all. Memory is lent until poll() or a later call has put the result of that ticket
  // into take_reads(), and never written after that.
  void read(std::span<const RemoteRead> reads);
  // Appends the reader's results; each read has exactly one.
  void take_reads(std::vector<RemoteReadResult>& results,
                  RemoteReader reader = RemoteReader::kTier);
  // All that are under way fail with kCancelled.
  void cancel_reads();
  int reads_in_flight() const;  // results not taken yet

  // Moves everything along.
  void poll();
  // Sleeps until poll() may have something to do, or until `time`; may return early.
  void wait_until(Clock::TimePoint time);

  const PeerConfig& config() const;
  // What is read is what the exporter has, and not only like it.
  bool is_exact() const;
  Clock::TimePoint now() const;
  PeerPoolStats stats() const;

 private:
  class Impl;
  explicit PeerPool(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace karez
