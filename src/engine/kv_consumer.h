// KvConsumer: gets the KV of prompts that another node has prefilled, before the scheduler sees
// their requests.
//
//   start() -> leased -> manifest -> room? -> its tail, or all of it, is read into slots -> ready
//
// The lease is asked for at once, so that the producer keeps the KV; the manifest in the order of
// start(), as far as the budget for manifests goes.
// With KvAdmit::kSparse whole extents (64 tokens) stay with the producer: they are adopted as
// blocks at home there, the key index comes with the manifest, and attention reads what it selects,
// when it selects it. Only what lies behind the last whole extent must be read before the first
// step; behind that the working set is read that the producer has found, and nobody waits for it.
// With kFull everything is read before the first step. A lease is held from the manifest to
// finished() or cancel(): sparsely admitted sequences read from the producer for as long as they
// run. Every failure ends in a Ready with an error; nothing of the request is left in the store
// then. Thread: the store's owner, between steps. Owns: sequences until they are ready, and leases.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "attention/key_index.h"
#include "base/clock.h"
#include "base/status.h"
#include "engine/kv_peer_stats.h"
#include "engine/role_options.h"
#include "engine/transfer_note.h"
#include "kv/kv_cache_manager.h"
#include "remote/peer_pool.h"
#include "remote/remote_tier.h"
#include "sched/request.h"

namespace karez {

class KvConsumer {
 public:
  struct Options {
    KvAdmit admit = KvAdmit::kFull;
    int vocab_size = 0;
    // From start() to the lease, from its turn to the manifest, and from there being room to the
    // first block and from one to the next. In between a request waits as long as it must: the
    // producer keeps the KV while heartbeats come.
    Clock::Duration timeout = std::chrono::seconds(30);
    // Of requests that are not ready yet, together. One that is larger comes when no other is here.
    std::size_t max_manifest_bytes = std::size_t{64} << 20U;
  };
  struct Ready {
    RequestId request = 0;
    SequenceId kv;              // open, with all tokens of the prompt if there are logits, else all
                                // but the last one; none: failed
    std::vector<float> logits;  // f32 [vocab_size], of the last token
    int num_remote_tokens = 0;  // the first of them, whose blocks stay with the producer
    bool is_exact = true;       // the KV is the producer's, and not only like it
    std::optional<Status> error;
  };

  // tier: the store's home tier; null: there is none, everything is admitted in full. index: null:
  // no key index. All must outlive it.
  KvConsumer(KVCacheManager& kv, const KeyIndex* index, std::shared_ptr<PeerPool> pool,
             RemoteTier* tier, Options options, const Clock& clock = Clock::steady());
  ~KvConsumer();
  KvConsumer(const KvConsumer&) = delete;
  KvConsumer& operator=(const KvConsumer&) = delete;

  // Requires: request->kv_transfer consumes; no other with this id is known.
  void start(std::shared_ptr<const Request> request);
  // Whether slots for the prompt of a request may be taken now; num_remote_tokens of it take none.
  using HasRoom = std::function<bool(const Request& request, int num_remote_tokens)>;
  // Moves all along, and appends what is ready.
  void poll(const HasRoom& has_room, std::vector<Ready>& ready);
  // It is not wanted any more, or has ended: its lease goes back. Unknown ids are ignored.
  void finished(RequestId request);
  bool reads_from_peer(RequestId request) const { return leases_.contains(request); }
  // A sequence's KV could not be read any more.
  void note_lost() { ++counters_.lost; }

  // Requests that are not ready: poll() often.
  bool has_arrivals() const { return !arrivals_.empty(); }
  int num_arrivals() const { return static_cast<int>(arrivals_.size()); }
  // Of them, that are here or on their way.
  std::size_t manifest_bytes() const;
  // Of the fast tier, that they have while their KV is read.
  std::int64_t slots_held() const;
  // Leases need poll() for their heartbeats.
  bool has_leases() const { return !leases_.empty(); }
  KvConsumerStats stats() const;

 private:
  enum class Stage {
    kLeasing,
    kQueued,    // for room in the budget for manifests
    kFetching,  // its manifest
    kWaiting,   // for slots
    kReading,
    kStopping,  // failed or cancelled, while the peer may still write to its slots
  };
  struct Arrival {
    std::shared_ptr<const Request> request;
    Stage stage = Stage::kLeasing;
    Clock::TimePoint begun;
    Clock::TimePoint deadline;
    FetchId fetch;
    std::size_t manifest_bytes = 0;  // once it is asked for
    Manifest manifest;
    SequenceId kv;
    int num_remote_tokens = 0;    // of kv the first, which take no slots
    std::int64_t first_read = 0;  // blocks from this one on are read into slots
    std::size_t next_read = 0;    // of the reads that this makes, in order
    std::int64_t reads_in_flight = 0;
    std::int64_t blocks_read = 0;
    TransferNote note;
    std::optional<Status> error;
    bool is_wanted = true;  // false: cancelled, nobody hears of it
  };

  void poll_peers();
  void fetch_manifests();
  // True: it is over.
  bool advance(Arrival& arrival, const HasRoom& has_room, std::vector<Ready>& ready);
  void take_manifest(Arrival& arrival);
  // Why it can never be admitted.
  std::optional<Status> find_lack_of_slots(const Arrival& arrival) const;
  std::optional<Status> check(const Arrival& arrival) const;
  bool has_logits(const Arrival& arrival) const;
  // Of the prompt, how many are admitted, and of these, how many stay with the producer.
  int num_tokens(const Arrival& arrival) const;
  int num_remote_tokens(const Arrival& arrival) const;
  std::int64_t slots_to_read(int num_tokens) const;
  void open(Arrival& arrival);
  SequenceId open_at_producer(const Manifest& manifest, int num_tokens);
  std::span<const RemoteBlock> blocks_of(const Manifest& manifest, int layer, int head) const;
  void read_more(Arrival& arrival);
  void prefetch_working_set(Arrival& arrival);
  void stop(Arrival& arrival, Status error);
  void finish(Arrival& arrival, std::vector<Ready>& ready);
  void import_records(const Arrival& arrival);

  KVCacheManager& kv_;
  const KeyIndex* index_;
  std::shared_ptr<PeerPool> pool_;
  RemoteTier* tier_;
  Options options_;
  const Clock& clock_;
  std::list<Arrival> arrivals_;  // in the order of start()
  std::map<RequestId, LeaseId> leases_;
  std::uint64_t last_ticket_ = 0;
  std::map<std::uint64_t, Arrival*> tickets_;
  std::vector<RemoteReadResult> results_;
  std::vector<RemoteRead> batch_;
  KvConsumerStats counters_;
};

}  // namespace karez
