// PeerConnection: one exporter as the consumer sees it: handshake, manifests, leases, and blocks
// in messages. Knows no transport.
//
// Thread: one owner thread. What it sends goes out through `send`; what has come of it is fetched
// with the take functions.
// Owns: manifests under way, leases. Memory of reads is lent until their result is there.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "remote/peer_pool.h"
#include "remote/wire_blocks.h"
#include "remote/wire_messages.h"

namespace karez {

class PeerConnection {
 public:
  // Between two ticks no more than this counts as the peer's silence: in the rest nobody has looked
  // whether it says something.
  static constexpr Clock::Duration kSilenceStep = std::chrono::seconds(1);

  using Send = std::function<void(std::vector<std::byte>)>;
  struct FetchEnd {
    FetchId fetch;
    Expected<Manifest> outcome;  // its lease is not set
    std::uint64_t lease = 0;     // of a manifest; the exporter's name for it
  };

  // Says hello at once. The options must outlive it.
  PeerConnection(const PeerPoolOptions& options, PeerPoolStats& stats, Send send,
                 Clock::TimePoint now);

  void on_frame(std::span<const std::byte> bytes, Clock::TimePoint now);
  // Bytes of it came that are no whole frame yet.
  void on_heard(Clock::TimePoint now);
  // Everything under way fails.
  void on_broken(const Status& status);
  // Deadlines and heartbeats. When to be called again at the latest.
  Clock::TimePoint tick(Clock::TimePoint now);

  bool is_ready() const { return state_ == State::kReady; }
  bool is_broken() const { return state_ == State::kBroken; }
  // It has let a question wait for read_timeout, and said nothing in that time. Reads fail at once
  // until it says something: those who wait for blocks would wait for each anew.
  bool is_silent() const { return is_silent_; }
  // Why it is broken.
  const Status& problem() const { return problem_; }
  // Once, after the handshake.
  std::optional<ReadyMessage> take_ready() { return std::exchange(new_ready_, std::nullopt); }

  void fetch(FetchId id, const RequestKey& key, std::uint64_t epoch, Clock::TimePoint deadline,
             FetchContents contents = FetchContents::kAtOnce);
  // As in PeerPool. Unknown ids are ignored.
  std::optional<std::size_t> manifest_bytes(FetchId id) const;
  void fetch_contents(FetchId id, Clock::TimePoint deadline);
  void cancel_fetch(FetchId id);
  void take_fetches(std::vector<FetchEnd>& ends);

  bool is_alive(std::uint64_t lease, Clock::TimePoint now) const;
  void release(std::uint64_t lease);
  int num_leases() const { return static_cast<int>(leases_.size()); }

  // Takes them; flush() sends what may be sent.
  void read(std::uint64_t lease, const RemoteRead& read);
  void flush(Clock::TimePoint now);
  void cancel_reads();
  void take_reads(std::vector<RemoteReadResult>& results);

 private:
  enum class State { kGreeting, kConfirming, kReady, kBroken };
  static constexpr int kHeartbeatsPerLease = 3;
  struct Fetch {
    FetchId id;
    RequestKey key;
    std::uint64_t epoch = 0;
    Clock::TimePoint deadline;
    Clock::TimePoint sent;
    bool is_sent = false;
    bool wants_contents = true;
    Clock::Duration silence = {};  // since it was sent or the peer was heard
    std::uint64_t lease = 0;       // 0: the manifest has not come
    ManifestMessage described;     // the sizes of its contents
    Manifest manifest;
    std::vector<std::byte> block_bytes;  // the section as it comes
    std::deque<FetchPartMessage> missing;
    std::size_t parts_asked = 0;

    // Else the peer owes it nothing.
    bool is_waiting() const { return is_sent && (lease == 0 || wants_contents); }
  };
  struct AskedPart {
    std::uint64_t fetch = 0;  // request of its fetch message; the fetch may have ended
    FetchPartMessage part;
  };
  struct Lease {
    Clock::TimePoint valid_until;
  };
  struct Heartbeat {
    Clock::TimePoint sent;
    std::vector<std::uint64_t> leases;
  };
  struct Reading {
    RemoteRead read;
    int blocks_left = 0;
  };
  struct BlockOfRead {
    std::uint64_t reading = 0;
    int block = 0;
  };
  struct ReadMessage {
    std::uint64_t lease = 0;
    Clock::TimePoint asked;  // or later: time in which nobody looked for the answer is added
    std::vector<BlockOfRead> blocks;
  };

  void take_hello_reply(const WireFrame& frame);
  void take_ready(const WireFrame& frame);
  void take_manifest(const WireFrame& frame);
  void take_part(const WireFrame& frame);
  void take_heartbeat_ack(const WireFrame& frame);
  void take_block_data(const WireFrame& frame);
  void take_error(const WireFrame& frame);
  void break_off(const Status& status);

  using Fetches = std::map<std::uint64_t, Fetch>;
  Fetches::iterator find_fetch(FetchId id);
  Fetches::const_iterator find_fetch(FetchId id) const;
  void send_fetch(std::uint64_t request, Fetch& fetch);
  void begin_contents(Fetch& fetch);
  void plan_parts(Fetch& fetch);
  void ask_parts();
  // Its answer has come.
  std::optional<AskedPart> take_asked_part(std::uint64_t request);
  std::size_t num_manifest_blocks(const ManifestMessage& manifest) const;
  static std::span<std::byte> section_of(Fetch& fetch, ManifestSection section);
  void end_fetch(std::uint64_t key, Expected<Manifest> outcome);
  void lose_lease(std::uint64_t lease);
  void finish_block(std::uint64_t reading, TransferStatus status);
  void fail_all_reads(TransferStatus status);
  void fail_reads_of(std::uint64_t lease, TransferStatus status);
  void send_heartbeats(Clock::TimePoint now);
  void forgive_pause(Clock::TimePoint last_look, Clock::TimePoint now);
  void expire(Clock::TimePoint now);
  void end_late_fetches(Clock::TimePoint now, Clock::Duration passed);
  void become_silent();
  Clock::TimePoint next_tick() const;
  std::uint64_t next_request() { return ++last_request_; }

  const PeerPoolOptions& options_;
  WireBlocks wire_;
  PeerPoolStats& stats_;
  Send send_;
  State state_ = State::kGreeting;
  Status problem_;
  Nonce nonce_ = {};
  Clock::TimePoint connect_deadline_;
  Clock::TimePoint seen_;   // the latest time that somebody told
  Clock::TimePoint heard_;  // bytes came
  Clock::TimePoint last_tick_;
  bool is_silent_ = false;
  Clock::Duration lease_duration_ = {};
  std::optional<ReadyMessage> new_ready_;
  std::uint64_t last_request_ = 0;

  Fetches fetches_;                                 // index: request of its fetch message
  std::map<std::uint64_t, AskedPart> asked_parts_;  // unanswered; index: request
  std::uint64_t last_served_fetch_ = 0;
  std::vector<FetchEnd> fetch_ends_;
  std::unordered_map<std::uint64_t, Lease> leases_;
  Clock::TimePoint next_heartbeat_ = Clock::TimePoint::max();
  std::map<std::uint64_t, Heartbeat> heartbeats_;  // unanswered, for a lease; index: request
  std::uint64_t last_heartbeat_ = 0;               // its request

  std::uint64_t last_reading_ = 0;
  std::unordered_map<std::uint64_t, Reading> readings_;
  std::map<std::uint64_t, std::deque<BlockOfRead>> waiting_;  // index: lease
  std::uint64_t last_served_lease_ = 0;
  std::map<std::uint64_t, ReadMessage> read_messages_;  // index: request
  std::vector<RemoteReadResult> read_results_;
};

}  // namespace karez
