#include "remote/peer_pool.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "remote/frame_sockets.h"
#include "remote/network_reader.h"
#include "remote/peer_connection.h"
#include "remote/shared_reader.h"
#include "remote/ucx_network.h"
#include "remote/wire_blocks.h"

namespace karez {

namespace {

constexpr auto kFarewellTime = std::chrono::milliseconds(200);

std::optional<Status> check_options(const PeerPoolOptions& options) {
  if (std::optional<Status> problem = check_peer_config(options.config)) {
    return problem;
  }
  const auto least = std::min(options.connect_timeout, options.read_timeout);
  if (least < std::chrono::milliseconds(1)) {
    return Status(StatusCode::kInvalidArgument,
                  "a time limit of the peer pool is less than the least, 1 ms");
  }
  return std::nullopt;
}

}  // namespace

std::string PeerAddress::to_string() const { return fmt::format("{} port {}", host, port); }

class PeerPool::Impl {
 public:
  Impl(const PeerPoolOptions& options, const Clock& clock) : options_(options), clock_(clock) {}

  ~Impl() {
    for (auto& [id, peer] : peers_) {
      for (const auto& [lease, held] : leases_) {
        if (held.peer == id) {
          peer.connection->release(held.lease);
        }
      }
    }
    const auto end = std::chrono::steady_clock::now() + kFarewellTime;
    while (sockets_ && has_unsent() && std::chrono::steady_clock::now() < end) {
      sockets_->progress();
    }
  }

  std::optional<Status> start() {
    FrameSocketsCallbacks callbacks;
    callbacks.on_frame = [this](ConnectionId id, std::span<const std::byte> bytes) {
      if (const auto peer = peers_.find(id); peer != peers_.end()) {
        peer->second.connection->on_frame(bytes, clock_.now());
      }
    };
    callbacks.on_bytes = [this](ConnectionId id) {
      if (const auto peer = peers_.find(id); peer != peers_.end()) {
        peer->second.connection->on_heard(clock_.now());
      }
    };
    callbacks.on_broken = [this](ConnectionId id, const Status& status) {
      if (const auto peer = peers_.find(id); peer != peers_.end()) {
        const bool is_stranger =
            status.code() == StatusCode::kCorruption && !peer->second.connection->is_ready();
        peer->second.connection->on_broken(
            is_stranger
                ? Status(status.code(), "this is not a KV port of karez: " + status.message())
                : status);
      }
    };
    Expected<std::unique_ptr<FrameSockets>> sockets = FrameSockets::create(std::move(callbacks));
    if (!sockets) {
      return sockets.error();
    }
    sockets_ = std::move(*sockets);
    if (options_.one_sided_network) {
      Expected<std::unique_ptr<UcxNetwork>> network = UcxNetwork::create(options_.transports);
      if (!network) {
        return network.error();
      }
      network_ = std::move(*network);
      sockets_->watch(network_->descriptor());
    }
    return std::nullopt;
  }

  FetchId fetch(const PeerAddress& address, const RequestKey& key, std::uint64_t epoch,
                Clock::TimePoint deadline, FetchContents contents) {
    poll();  // whatever has come since the last time: no deadline is judged without it
    const FetchId id(next_fetch_++);
    fetches_.emplace(id, Fetching{});
    auto known = std::find_if(peers_.begin(), peers_.end(), [&](const auto& entry) {
      return entry.second.address == address && !entry.second.connection->is_broken();
    });
    if (known == peers_.end()) {
      const Expected<ConnectionId> connection = sockets_->connect(address.host, address.port);
      if (!connection) {
        ++stats_.failures;
        fetches_[id].outcome = fail(with_address(address, connection.error()));
        return id;
      }
      Peer peer;
      peer.address = address;
      known = peers_.emplace(*connection, std::move(peer)).first;
      known->second.connection = std::make_unique<PeerConnection>(
          options_, stats_,
          [this, to = *connection](std::vector<std::byte> frame) {
            sockets_->send(to, std::move(frame));
          },
          clock_.now());
    }
    fetches_[id].peer = known->first;
    known->second.connection->fetch(id, key, epoch, deadline, contents);
    collect(known->first, known->second);
    next_tick_ = std::min(next_tick_, clock_.now());
    return id;
  }

  std::optional<std::size_t> manifest_bytes(FetchId id) const {
    const PeerConnection* connection = connection_of(id);
    return connection == nullptr ? std::nullopt : connection->manifest_bytes(id);
  }

  void fetch_contents(FetchId id, Clock::TimePoint deadline) {
    if (PeerConnection* connection = connection_of(id)) {
      connection->fetch_contents(id, deadline);
      next_tick_ = std::min(next_tick_, clock_.now());
    }
  }

  std::optional<Expected<Manifest>> take(FetchId id) {
    const auto found = fetches_.find(id);
    KAREZ_CHECK(found != fetches_.end(), "a fetch is taken once");
    if (!found->second.outcome) {
      return std::nullopt;
    }
    Expected<Manifest> outcome = std::move(*found->second.outcome);
    fetches_.erase(found);
    return outcome;
  }

  void cancel(FetchId id) {
    const auto found = fetches_.find(id);
    if (found == fetches_.end()) {
      return;
    }
    if (found->second.outcome && *found->second.outcome) {
      release((*found->second.outcome)->lease);
    } else if (const auto peer = peers_.find(found->second.peer); peer != peers_.end()) {
      peer->second.connection->cancel_fetch(id);
    }
    fetches_.erase(found);
  }

  bool is_alive(LeaseId lease) const {
    const auto held = leases_.find(lease);
    if (held == leases_.end()) {
      return false;
    }
    const auto peer = peers_.find(held->second.peer);
    return peer != peers_.end() &&
           peer->second.connection->is_alive(held->second.lease, clock_.now());
  }

  void release(LeaseId lease) {
    const auto held = leases_.find(lease);
    if (held == leases_.end()) {
      return;
    }
    if (const auto peer = peers_.find(held->second.peer); peer != peers_.end()) {
      peer->second.connection->release(held->second.lease);
      if (peer->second.network) {
        peer->second.network->fail_reads_of(lease, TransferStatus::kCancelled, results_);
      }
      peer->second.connection->take_reads(results_);
    }
    leases_.erase(held);
  }

  void read(std::span<const RemoteRead> reads) {
    if (network_) {
      network_->progress();
    }
    const Clock::TimePoint now = clock_.now();
    // Callers may wait before the next poll().
    next_tick_ =
        std::min(next_tick_, now + std::min(PeerConnection::kSilenceStep, options_.read_timeout));
    reads_in_flight_ += static_cast<int>(reads.size());
    for (const RemoteRead& read : reads) {
      KAREZ_CHECK(read.num_blocks >= 1 && read.num_blocks <= kExtentBlocks,
                  "a read is of one extent");
      const auto held = leases_.find(read.lease);
      const auto peer = held == leases_.end() ? peers_.end() : peers_.find(held->second.peer);
      if (peer == peers_.end() || !peer->second.connection->is_alive(held->second.lease, now)) {
        results_.push_back({read.ticket, read.reader, TransferStatus::kIoError});
      } else if (!read_shared(peer->second, read)) {
        if (peer->second.network && peer->second.connection->is_silent()) {
          results_.push_back({read.ticket, read.reader, TransferStatus::kDeadlinePassed});
        } else if (peer->second.network) {
          peer->second.network->read(read);
        } else {
          peer->second.connection->read(held->second.lease, read);
        }
      }
    }
    for (auto& [id, peer] : peers_) {
      peer.connection->flush(now);
      peer.connection->take_reads(results_);
      poll_network(peer, now);
    }
  }

  void take_reads(std::vector<RemoteReadResult>& results, RemoteReader reader) {
    const auto others = std::stable_partition(
        results_.begin(), results_.end(),
        [reader](const RemoteReadResult& result) { return result.reader == reader; });
    for (auto result = results_.begin(); result != others; ++result) {
      stats_.reads_failed += result->status == TransferStatus::kOk ? 0 : 1;
      results.push_back(*result);
    }
    reads_in_flight_ -= static_cast<int>(others - results_.begin());
    results_.erase(results_.begin(), others);
  }
  void cancel_reads() {
    for (auto& [id, peer] : peers_) {
      peer.connection->cancel_reads();
      peer.connection->take_reads(results_);
      if (peer.network) {
        peer.network->fail_all(TransferStatus::kCancelled, results_);
      }
    }
  }
  int reads_in_flight() const { return reads_in_flight_; }

  void poll() {
    sockets_->progress();
    if (network_) {
      network_->progress();
    }
    const Clock::TimePoint now = clock_.now();
    next_tick_ = Clock::TimePoint::max();
    for (auto peer = peers_.begin(); peer != peers_.end();) {
      const ConnectionId id = peer->first;
      Peer& moved = peer->second;
      ++peer;
      if (std::optional<ReadyMessage> ready = moved.connection->take_ready()) {
        attach(moved, *ready);
      }
      next_tick_ = std::min(next_tick_, moved.connection->tick(now));
      poll_network(moved, now);
      collect(id, moved);
      if (moved.connection->is_broken()) {
        drop(id, moved);
      }
    }
  }

  void wait_until(Clock::TimePoint time) {
    if (!prepare_wait()) {
      return;
    }
    const Clock::TimePoint now = clock_.now();
    const Clock::TimePoint until = std::min(time, next_tick_);
    if (until <= now) {
      return;
    }
    constexpr auto kLongest = std::chrono::hours(1);
    const auto left = std::min<Clock::Duration>(until - now, kLongest);
    const auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(left).count();
    const timespec limit = {.tv_sec = static_cast<std::time_t>(nanoseconds / 1'000'000'000),
                            .tv_nsec = static_cast<long>(nanoseconds % 1'000'000'000)};
    pollfd descriptor = {sockets_->descriptor(), POLLIN, 0};
    ::ppoll(&descriptor, 1, &limit, nullptr);
  }

  const PeerConfig& config() const { return options_.config; }
  bool is_exact() const { return WireBlocks(options_.config).is_exact(); }
  Clock::TimePoint now() const { return clock_.now(); }
  PeerPoolStats stats() const {
    PeerPoolStats stats = stats_;
    for (const auto& [id, peer] : peers_) {
      stats.connections += peer.connection->is_ready() ? 1 : 0;
      stats.leases += peer.connection->num_leases();
    }
    stats.fetches = static_cast<int>(fetches_.size());
    return stats;
  }

 private:
  struct Peer {
    PeerAddress address;
    std::unique_ptr<PeerConnection> connection;
    std::unique_ptr<SharedReader::Peer> shared;
    std::unique_ptr<NetworkReader> network;
  };
  struct Fetching {
    ConnectionId peer = 0;
    std::optional<Expected<Manifest>> outcome;
  };
  struct Held {
    ConnectionId peer = 0;
    std::uint64_t lease = 0;
  };

  // False: poll() has something to do now.
  bool prepare_wait() {
    return results_.empty() && !has_outcome() && (!network_ || network_->arm());
  }
  PeerConnection* connection_of(FetchId id) const {
    const auto fetching = fetches_.find(id);
    const auto peer =
        fetching == fetches_.end() ? peers_.end() : peers_.find(fetching->second.peer);
    return peer == peers_.end() ? nullptr : peer->second.connection.get();
  }
  static Status with_address(const PeerAddress& address, const Status& status) {
    return {status.code(), fmt::format("{}: {}", address.to_string(), status.message())};
  }

  bool has_unsent() const {
    return std::any_of(peers_.begin(), peers_.end(), [this](const auto& entry) {
      return !entry.second.connection->is_broken() && sockets_->bytes_unsent(entry.first) > 0;
    });
  }
  bool has_outcome() const {
    return std::any_of(fetches_.begin(), fetches_.end(),
                       [](const auto& entry) { return entry.second.outcome.has_value(); });
  }

  // What fails here leaves messages as the way.
  void attach(Peer& peer, const ReadyMessage& ready) {
    if (!is_exact()) {
      return;  // out of memory a block comes as it lies there
    }
    if (options_.use_shared_memory && !ready.shared_key.empty()) {
      if (!shared_reader_) {
        Expected<std::unique_ptr<SharedReader>> reader =
            SharedReader::create(options_.config.block_bytes);
        if (!reader) {
          return;
        }
        shared_reader_ = std::move(*reader);
      }
      Expected<std::unique_ptr<SharedReader::Peer>> shared = shared_reader_->attach(ready);
      if (shared) {
        peer.shared = std::move(*shared);
        return;
      }
    }
    if (network_ && !ready.network_worker.empty() && !ready.network_key.empty()) {
      Expected<std::unique_ptr<UcxNetwork::Peer>> reached = network_->connect(
          ready.network_worker, ready.network_key, ready.memory_address, ready.memory_bytes);
      if (reached) {
        peer.network = std::make_unique<NetworkReader>(
            std::move(*reached), options_.config.block_bytes, options_.read_timeout, clock_.now());
      }
    }
  }

  void poll_network(Peer& peer, Clock::TimePoint now) {
    if (!peer.network) {
      return;
    }
    peer.network->poll(now, stats_, results_);
    if (peer.network->is_lost()) {
      std::vector<RemoteRead> unanswered;
      peer.network->take_back(unanswered);
      peer.network.reset();  // messages are the way as long as this connection lives
      for (const RemoteRead& read : unanswered) {
        const auto held = leases_.find(read.lease);
        if (held == leases_.end() || !peer.connection->is_alive(held->second.lease, now)) {
          results_.push_back({read.ticket, read.reader, TransferStatus::kIoError});
        } else {
          peer.connection->read(held->second.lease, read);
        }
      }
      peer.connection->flush(now);
      peer.connection->take_reads(results_);
      return;
    }
    if (peer.connection->is_silent()) {
      peer.network->fail_all(TransferStatus::kDeadlinePassed, results_);
    }
    next_tick_ = std::min(next_tick_, peer.network->next_poll());
  }

  // False: another way must be taken.
  bool read_shared(Peer& peer, const RemoteRead& read) {
    if (!peer.shared) {
      return false;
    }
    const Expected<TransferStatus> status = shared_reader_->read(*peer.shared, read);
    if (!status) {
      peer.shared.reset();
      return false;
    }
    if (*status == TransferStatus::kOk) {
      stats_.blocks_read += read.num_blocks;
      stats_.blocks_read_shared += read.num_blocks;
      stats_.bytes_received +=
          read.num_blocks * static_cast<std::int64_t>(options_.config.block_bytes);
    }
    results_.push_back({read.ticket, read.reader, *status});
    return true;
  }

  void collect(ConnectionId id, Peer& peer) {
    peer.connection->take_reads(results_);
    ends_.clear();
    peer.connection->take_fetches(ends_);
    for (PeerConnection::FetchEnd& end : ends_) {
      const auto fetching = fetches_.find(end.fetch);
      if (fetching == fetches_.end()) {
        if (end.outcome) {
          peer.connection->release(end.lease);
        }
        continue;
      }
      if (end.outcome) {
        end.outcome->lease = LeaseId(next_lease_++);
        leases_[end.outcome->lease] = {id, end.lease};
        fetching->second.outcome = std::move(end.outcome);
      } else {
        fetching->second.outcome = fail(with_address(peer.address, end.outcome.error()));
      }
    }
  }

  void drop(ConnectionId id, Peer& peer) {
    if (peer.network) {
      peer.network->fail_all(TransferStatus::kIoError, results_);
    }
    sockets_->close(id);
    peers_.erase(id);
  }

  PeerPoolOptions options_;
  const Clock& clock_;
  PeerPoolStats stats_;
  std::unique_ptr<SharedReader> shared_reader_;
  std::unique_ptr<FrameSockets> sockets_;
  std::unique_ptr<UcxNetwork> network_;  // null: not one-sided
  std::map<ConnectionId, Peer> peers_;
  std::unordered_map<FetchId, Fetching> fetches_;
  std::unordered_map<LeaseId, Held> leases_;
  std::uint32_t next_fetch_ = 0;
  std::uint32_t next_lease_ = 0;
  int reads_in_flight_ = 0;
  Clock::TimePoint next_tick_ = Clock::TimePoint::max();
  std::vector<RemoteReadResult> results_;
  std::vector<PeerConnection::FetchEnd> ends_;
};

Expected<std::unique_ptr<PeerPool>> PeerPool::create(const PeerPoolOptions& options,
                                                     const Clock& clock) {
  if (std::optional<Status> problem = check_options(options)) {
    return fail(std::move(*problem));
  }
  auto impl = std::make_unique<Impl>(options, clock);
  if (std::optional<Status> problem = impl->start()) {
    return fail(std::move(*problem));
  }
  return std::unique_ptr<PeerPool>(new PeerPool(std::move(impl)));
}

PeerPool::PeerPool(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PeerPool::~PeerPool() = default;

FetchId PeerPool::fetch(const PeerAddress& address, const RequestKey& key, std::uint64_t epoch,
                        Clock::TimePoint deadline, FetchContents contents) {
  return impl_->fetch(address, key, epoch, deadline, contents);
}
std::optional<std::size_t> PeerPool::manifest_bytes(FetchId fetch) const {
  return impl_->manifest_bytes(fetch);
}
void PeerPool::fetch_contents(FetchId fetch, Clock::TimePoint deadline) {
  impl_->fetch_contents(fetch, deadline);
}
std::optional<Expected<Manifest>> PeerPool::take(FetchId fetch) { return impl_->take(fetch); }
void PeerPool::cancel(FetchId fetch) { impl_->cancel(fetch); }
bool PeerPool::is_alive(LeaseId lease) const { return impl_->is_alive(lease); }
void PeerPool::release(LeaseId lease) { impl_->release(lease); }
void PeerPool::read(std::span<const RemoteRead> reads) { impl_->read(reads); }
void PeerPool::take_reads(std::vector<RemoteReadResult>& results, RemoteReader reader) {
  impl_->take_reads(results, reader);
}
void PeerPool::cancel_reads() { impl_->cancel_reads(); }
int PeerPool::reads_in_flight() const { return impl_->reads_in_flight(); }
void PeerPool::poll() { impl_->poll(); }
void PeerPool::wait_until(Clock::TimePoint time) { impl_->wait_until(time); }
const PeerConfig& PeerPool::config() const { return impl_->config(); }
bool PeerPool::is_exact() const { return impl_->is_exact(); }
Clock::TimePoint PeerPool::now() const { return impl_->now(); }
PeerPoolStats PeerPool::stats() const { return impl_->stats(); }

}  // namespace karez
