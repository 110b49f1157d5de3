// ExportTable: what is exported, who has leased it, and until when. Knows no connections.
//
// Thread: none of its own; whoever shares it holds a lock.
// Owns: the exports.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "remote/kv_exporter.h"

namespace karez {

// A connection.
using SessionId = std::uint64_t;

class ExportTable {
 public:
  static constexpr std::size_t kMaxLeasesPerExport = 64;

  ExportTable(const PeerConfig& config, std::size_t memory_bytes, Clock::Duration lease_duration,
              int max_exports);

  Expected<RequestKey> add(KvExport exported, Clock::TimePoint now);
  bool remove(const RequestKey& key);
  // Ends what is due, and appends what has ended since the last call.
  void take_ended(Clock::TimePoint now, std::vector<EndedExport>& ended);

  // A lease of this session. Prolongs the export. Fails: kNotFound, kResourceExhausted.
  Expected<std::uint64_t> open(const RequestKey& key, std::uint64_t epoch, SessionId session,
                               Clock::TimePoint now);
  // nullptr: not leased by this session, or its time has come.
  const KvExport* find(std::uint64_t lease, SessionId session, Clock::TimePoint now) const;
  // False: as find().
  bool prolong(std::uint64_t lease, SessionId session, Clock::TimePoint now);
  // The export ends with its last lease.
  void release(std::uint64_t lease, SessionId session);
  // Its leases are of no use to anybody. Their exports live on until their deadline, so that the
  // consumer may come back.
  void drop_session(SessionId session);

  int num_exports() const { return static_cast<int>(exports_.size()); }
  int num_leases() const { return static_cast<int>(leases_.size()); }

 private:
  struct Entry {
    KvExport exported;
    Clock::TimePoint deadline;
    std::vector<std::uint64_t> leases;
  };
  struct Lease {
    RequestKey key;
    SessionId session = 0;
  };
  using Exports = std::map<RequestKey, Entry>;

  std::optional<Status> check(const KvExport& exported) const;
  const Lease* lease_of(std::uint64_t lease, SessionId session) const;
  void erase(Exports::iterator entry);

  PeerConfig config_;
  std::size_t memory_bytes_;
  Clock::Duration lease_duration_;
  int max_exports_;
  Exports exports_;
  std::unordered_map<std::uint64_t, Lease> leases_;
  std::uint64_t last_lease_ = 0;
  std::vector<EndedExport> ended_;
};

}  // namespace karez
