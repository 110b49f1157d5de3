// KvExporter: the producer's side. A table of requests whose KV other nodes may take, and a port.
//
// An exported request lives while its lease does: it begins with add(), consumers prolong it by
// heartbeats, and it ends when all who fetched it have released it, or with time. Who owns the
// blocks keeps them pinned from add() until poll() says that the export has ended.
// A consumer that asks and does not listen is not heard, and cut off when its leases must have
// ended. Blocks in messages are checked against the lease when they are copied. Reads of shared
// memory cannot be seen here: consumers verify every block against the checksum that they were
// given. Thread: one owner thread calls it. A thread of its own serves the port; it reads the
// exported memory while an export lives, and never writes it. Owns: the thread, the port, the
// exports.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/token.h"
#include "remote/export_memory.h"
#include "remote/peer_config.h"
#include "remote/remote_block.h"
#include "remote/request_key.h"

namespace karez {

struct KvExport {
  static constexpr std::size_t kMaxNoteBytes = 1 << 22;

  std::uint64_t epoch = 0;          // must be named to fetch it
  std::vector<TokenId> tokens;      // those whose KV this is
  std::uint32_t num_blocks = 0;     // ceil(tokens / block_tokens)
  std::vector<RemoteBlock> blocks;  // [layers][kv heads][num_blocks]
  std::vector<std::byte> index;     // [layers][kv heads][num_blocks][index_bytes], or empty
  std::vector<std::byte> note;      // whatever else the consumer should know
};

struct KvExporterOptions {
  std::string host = "127.0.0.1";  // an address, not a name
  std::uint16_t port = 0;          // 0: any
  PeerConfig config;
  // Both sides prove that they know it; empty on both sides is a match. It is not sent.
  std::string secret;
  Clock::Duration lease_duration = std::chrono::seconds(30);
  // From connection to its handshake's end. A consumer answers between its steps, which may be
  // long.
  Clock::Duration hello_timeout = std::chrono::seconds(30);
  int max_connections = 256;
  int max_exports = 4096;
  // Also one-sided reads over the network that UCX finds. Whoever reaches UCX's ports can read and
  // write this process then, and crash it: for RDMA among machines that trust each other.
  bool one_sided_network = false;
  // UCX's UCX_TLS for that; empty: its own choice, which its environment may steer.
  std::string transports;
  // Called by the port's thread with "127.0.0.1 port 4711: peers do not fit: ..." for a connection
  // whose handshake has failed; of several within kRefusalsApart, with the first.
  static constexpr Clock::Duration kRefusalsApart = std::chrono::seconds(1);
  std::function<void(std::string_view)> on_refused;
};

enum class ExportEnd {
  kReleased,  // everybody who fetched it has released it
  kExpired,   // no heartbeat in time, or nobody came
};

struct EndedExport {
  RequestKey key;
  ExportEnd end = ExportEnd::kReleased;
};

struct KvExporterStats {
  int connections = 0;          // now
  int held_back = 0;            // of these, not heard, because answers wait for them to listen
  int exports = 0;              // now
  int leases = 0;               // now
  std::int64_t handshakes = 0;  // that succeeded
  std::int64_t refused = 0;     // handshakes that did not
  std::int64_t bad_messages = 0;
  std::int64_t manifests = 0;      // leases given
  std::int64_t blocks_sent = 0;    // in messages
  std::int64_t reads_refused = 0;  // for blocks of an export that had ended
  std::int64_t bytes_sent = 0;     // bodies of all messages
};

class KvExporter {
 public:
  // The clock must outlive it, and may be read by the port's thread.
  // Fails: kInvalidArgument for an option or a host that cannot be; kUnavailable if the port cannot
  // be opened; kIoError if UCX has no transport.
  static Expected<std::unique_ptr<KvExporter>> create(const KvExporterOptions& options,
                                                      std::shared_ptr<ExportMemory> memory,
                                                      const Clock& clock = Clock::steady());
  // Connections are cut. Ended exports that nobody has polled are forgotten.
  ~KvExporter();

  std::uint16_t port() const;

  // Every block that is not absent lies in the memory. From now on poll() will give its end.
  // Fails: kResourceExhausted with max_exports exports; kInvalidArgument for shapes that do not fit
  // the configuration.
  Expected<RequestKey> add(KvExport exported);
  // Ends it now, without an entry in poll(): when this returns, no message carries its blocks any
  // more. False: it has ended already, and poll() gives or gave it.
  bool remove(const RequestKey& key);
  // Lets leases end whose time has come, and appends what has ended.
  void poll(std::vector<EndedExport>& ended);

  KvExporterStats stats() const;
  // "127.0.0.1 port 7777, blocks in messages and in shared memory".
  std::string describe() const;

 private:
  class Impl;
  explicit KvExporter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace karez
