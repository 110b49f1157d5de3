#include "remote/kv_exporter.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "remote/export_memory_impl.h"
#include "remote/export_session.h"
#include "remote/export_table.h"
#include "remote/frame_sockets.h"
#include "remote/ucx_network.h"

namespace karez {

static_assert(std::endian::native == std::endian::little, "manifests are copied as they lie");

namespace {

// Of one connection, in answers; a consumer asks for less than half of it at a time.
constexpr std::size_t kMaxUnsentBytes = std::size_t{32} << 20U;
constexpr int kSleepMs = 500;  // at most, so that connections without a hello end
static_assert(std::chrono::milliseconds(kSleepMs) <= FrameSockets::kAcceptPause);

std::optional<Status> check_options(const KvExporterOptions& options) {
  const auto invalid = [](std::string_view what, std::int64_t seen, std::int64_t least) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("the KV exporter's {} is {}, allowed is {} or more", what, seen, least));
  };
  if (options.max_connections < 1) {
    return invalid("number of connections", options.max_connections, 1);
  }
  if (options.max_exports < 1) {
    return invalid("number of exports", options.max_exports, 1);
  }
  const auto lease = std::chrono::duration_cast<std::chrono::milliseconds>(options.lease_duration);
  if (lease.count() < 1) {
    return invalid("lease in milliseconds", lease.count(), 1);
  }
  return check_peer_config(options.config);
}

}  // namespace

class KvExporter::Impl {
 public:
  Impl(const KvExporterOptions& options, std::shared_ptr<ExportMemory> memory, const Clock& clock)
      : options_(options),
        memory_(std::move(memory)),
        clock_(clock),
        table_(options.config, memory_->bytes().size(), options.lease_duration,
               options.max_exports) {
    shared_.config = options.config;
    shared_.secret = options.secret;
    shared_.memory = memory_->bytes();
    shared_.table = &table_;
    shared_.stats = &stats_;
  }

  ~Impl() {
    stops_ = true;
    wake();
    if (thread_.joinable()) {
      thread_.join();
    }
    sockets_.reset();
    network_.reset();
    if (wake_descriptor_ >= 0) {
      ::close(wake_descriptor_);
    }
  }

  std::optional<Status> start() {
    wake_descriptor_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake_descriptor_ < 0) {
      return Status(StatusCode::kResourceExhausted, "the KV exporter got no eventfd");
    }
    FrameSocketsCallbacks callbacks;
    callbacks.on_accept = [this](ConnectionId id, const std::string& from) {
      return accept(id, from);
    };
    callbacks.on_frame = [this](ConnectionId id, std::span<const std::byte> bytes) {
      take_frame(id, bytes);
    };
    callbacks.on_broken = [this](ConnectionId id, const Status& status) {
      drop(id, status);
      const std::lock_guard lock(mutex_);
      stats_.bad_messages += status.code() == StatusCode::kCorruption ? 1 : 0;
    };
    Expected<std::unique_ptr<FrameSockets>> sockets =
        FrameSockets::create(std::move(callbacks), kMaxUnsentBytes);
    if (!sockets) {
      return sockets.error();
    }
    sockets_ = std::move(*sockets);
    sockets_->watch(wake_descriptor_);
    const Expected<std::uint16_t> port = sockets_->listen(options_.host, options_.port);
    if (!port) {
      return port.error();
    }
    port_ = *port;
    if (std::optional<Status> problem = make_ready()) {
      return problem;
    }
    thread_ = std::thread([this] { serve(); });
    return std::nullopt;
  }

  Expected<RequestKey> add(KvExport exported) {
    const std::lock_guard lock(mutex_);
    return table_.add(std::move(exported), clock_.now());
  }
  bool remove(const RequestKey& key) {
    const std::lock_guard lock(mutex_);
    return table_.remove(key);
  }
  void poll(std::vector<EndedExport>& ended) {
    const std::lock_guard lock(mutex_);
    table_.take_ended(clock_.now(), ended);
  }
  KvExporterStats stats() const {
    const std::lock_guard lock(mutex_);
    KvExporterStats stats = stats_;
    stats.connections = static_cast<int>(sessions_.size());
    stats.held_back =
        static_cast<int>(std::count_if(sessions_.begin(), sessions_.end(), [](const auto& entry) {
          return entry.second.held_back_since.has_value();
        }));
    stats.exports = table_.num_exports();
    stats.leases = table_.num_leases();
    return stats;
  }
  std::uint16_t port() const { return port_; }
  std::string describe() const {
    return fmt::format("{} port {}, blocks in messages{}{}", options_.host, port_,
                       memory_->is_shared() ? " and in shared memory" : "",
                       options_.one_sided_network ? " and one-sided over the network" : "");
  }

 private:
  struct Session {
    ExportSession session;
    Clock::TimePoint since;  // connected, or refused
    std::string from;
    bool was_ready = false;
    bool was_told = false;  // that it was refused
    std::optional<Clock::TimePoint> held_back_since = {};
  };

  std::optional<Status> make_ready() {
    ReadyMessage& ready = shared_.ready;
    ready.lease_ms = static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::milliseconds>(options_.lease_duration).count());
    ready.memory_address = std::bit_cast<std::uintptr_t>(memory_->bytes().data());
    ready.memory_bytes = memory_->bytes().size();
    if (memory_->is_shared()) {
      ready.shared_worker = memory_->impl().worker_address;
      ready.shared_key = memory_->impl().key;
    }
    if (!options_.one_sided_network) {
      return std::nullopt;
    }
    Expected<std::unique_ptr<UcxNetwork>> network = UcxNetwork::create(options_.transports);
    if (!network) {
      return network.error();
    }
    network_ = std::move(*network);
    if (std::optional<Status> problem = network_->expose(memory_->bytes())) {
      return problem;
    }
    ready.network_worker = network_->address();
    ready.network_key = network_->key();
    sockets_->watch(network_->descriptor());
    return std::nullopt;
  }

  // --- the port's thread from here on ---

  void serve() {
    pollfd descriptor = {sockets_->descriptor(), POLLIN, 0};
    while (!stops_) {
      sockets_->progress();
      if (network_) {
        network_->progress();
      }
      drop_silent();
      if (const std::string refusal = std::exchange(refusal_, {});
          !refusal.empty() && options_.on_refused) {
        options_.on_refused(refusal);
      }
      if (!network_ || network_->arm()) {
        ::poll(&descriptor, 1, kSleepMs);
      }
    }
  }

  bool accept(ConnectionId id, const std::string& from) {
    const std::lock_guard lock(mutex_);
    if (sessions_.size() >= static_cast<std::size_t>(options_.max_connections)) {
      return false;
    }
    sessions_.emplace(id, Session{ExportSession(shared_, id), clock_.now(), from});
    return true;
  }

  void take_frame(ConnectionId id, std::span<const std::byte> bytes) {
    ExportSession::Answer answer;
    {
      const std::lock_guard lock(mutex_);
      const auto found = sessions_.find(id);
      if (found == sessions_.end()) {
        return;
      }
      Session& session = found->second;
      const Clock::TimePoint now = clock_.now();
      answer = session.session.handle(bytes, now);
      if (std::exchange(session.was_ready, session.session.is_ready()) && !session.was_ready) {
        session.since = now;  // it has time to read why
      }
      note_refusal(session, now);
      stats_.bytes_sent += static_cast<std::int64_t>(answer.frame.size());
    }
    if (answer.closes) {
      to_close_.push_back(id);
    } else if (!answer.frame.empty()) {
      sockets_->send(id, std::move(answer.frame));
    }
  }

  void drop(ConnectionId id, const Status& why) {
    const std::lock_guard lock(mutex_);
    if (const auto found = sessions_.find(id); found != sessions_.end()) {
      found->second.session.end(why);
      note_refusal(found->second, clock_.now());
      sessions_.erase(found);
    }
    table_.drop_session(id);
  }

  // Under the lock; what it notes is told without it.
  void note_refusal(Session& session, Clock::TimePoint now) {
    const std::optional<Status>& refusal = session.session.refusal();
    if (!refusal || std::exchange(session.was_told, true) || now < next_refusal_) {
      return;
    }
    next_refusal_ = now + KvExporterOptions::kRefusalsApart;
    refusal_ = fmt::format("{}: {}", session.from, refusal->message());
  }

  void drop_silent() {
    {
      const std::lock_guard lock(mutex_);
      const Clock::TimePoint now = clock_.now();
      for (auto& [id, session] : sessions_) {
        if (!sockets_->is_held_back(id)) {
          session.held_back_since.reset();
        } else if (!session.held_back_since) {
          session.held_back_since = now;
        }
        if ((!session.session.is_ready() && now - session.since >= options_.hello_timeout) ||
            now - session.held_back_since.value_or(now) >= options_.lease_duration) {
          to_close_.push_back(id);
        }
      }
    }
    for (const ConnectionId id : std::exchange(to_close_, {})) {
      sockets_->close(id);
      drop(id, Status(StatusCode::kUnavailable, "cut off"));
    }
  }

  void wake() const {
    const std::uint64_t one = 1;
    if (wake_descriptor_ >= 0) {
      static_cast<void>(!::write(wake_descriptor_, &one, sizeof one));
    }
  }

  KvExporterOptions options_;
  std::shared_ptr<ExportMemory> memory_;
  const Clock& clock_;
  std::uint16_t port_ = 0;
  int wake_descriptor_ = -1;
  std::atomic<bool> stops_ = false;
  std::unique_ptr<FrameSockets> sockets_;  // of the port's thread
  std::unique_ptr<UcxNetwork> network_;    // of the port's thread; null: not one-sided
  std::vector<ConnectionId> to_close_;
  std::string refusal_;  // to be told
  Clock::TimePoint next_refusal_ = Clock::TimePoint::min();

  mutable std::mutex mutex_;  // of the rest
  ExportTable table_;
  KvExporterStats stats_;
  ExportSessionContext shared_;
  std::unordered_map<ConnectionId, Session> sessions_;
  std::thread thread_;
};

Expected<std::unique_ptr<KvExporter>> KvExporter::create(const KvExporterOptions& options,
                                                         std::shared_ptr<ExportMemory> memory,
                                                         const Clock& clock) {
  KAREZ_CHECK(memory != nullptr, "there is memory to export");
  if (std::optional<Status> problem = check_options(options)) {
    return fail(std::move(*problem));
  }
  auto impl = std::make_unique<Impl>(options, std::move(memory), clock);
  if (std::optional<Status> problem = impl->start()) {
    return fail(std::move(*problem));
  }
  return std::unique_ptr<KvExporter>(new KvExporter(std::move(impl)));
}

KvExporter::KvExporter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
KvExporter::~KvExporter() = default;

std::uint16_t KvExporter::port() const { return impl_->port(); }
Expected<RequestKey> KvExporter::add(KvExport exported) { return impl_->add(std::move(exported)); }
bool KvExporter::remove(const RequestKey& key) { return impl_->remove(key); }
void KvExporter::poll(std::vector<EndedExport>& ended) { impl_->poll(ended); }
KvExporterStats KvExporter::stats() const { return impl_->stats(); }
std::string KvExporter::describe() const { return impl_->describe(); }

}  // namespace karez
