#include "kv/store/prefix_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <mutex>
#include <utility>

#include "base/check.h"

namespace karez {
namespace {

constexpr std::size_t kWritesOfBatch = 16;
constexpr std::size_t kTouchesOfBatch = 64;
constexpr std::size_t kMaxKnown = 1 << 20;
constexpr std::int64_t kLeastStaged = 4;  // in staging
constexpr std::chrono::milliseconds kFlushLimit{3000};

std::int64_t records_in(std::int64_t staging_bytes, std::size_t record_bytes) {
  return std::max(kLeastStaged, staging_bytes / static_cast<std::int64_t>(record_bytes));
}

}  // namespace

// A find or a read. The worker has it until it is in the results; nobody else looks at it then.
struct PrefixStore::Load {
  Ticket ticket = 0;
  std::atomic<bool> is_cancelled = false;
  std::vector<RecordName> chain;  // of find()
  std::optional<RecordKey> key;   // of read()
  std::size_t num_present = 0;
  std::optional<Buffer> buffer;
  bool is_missing = false;
};

// What lanes and owner share, and what a lane that was left behind still has.
struct PrefixStore::Shared {
  Shared(const PrefixStoreOptions& store_options, std::shared_ptr<RecordBackend> store_backend,
         const Clock& store_clock)
      : shape(store_options.shape),
        backend(std::move(store_backend)),
        clock(store_clock),
        load_limit(store_options.load_limit),
        store_limit(store_options.store_limit),
        log(store_options.log),
        loads(store_options.breaker),
        stores(store_options.breaker) {}

  struct Write {
    RecordKey key;
    std::int64_t use_time_ns;
    Buffer buffer;
    bool is_doubted;
  };

  const RecordShape shape;
  const std::shared_ptr<RecordBackend> backend;
  const Clock& clock;
  const Clock::Duration load_limit;
  const Clock::Duration store_limit;

  std::mutex wake_mutex;  // held while the callback runs
  std::function<void()> wake;
  std::mutex log_mutex;
  std::function<void(std::string_view)> log;  // empty once the owner is gone

  mutable std::mutex mutex;  // of all below
  Breaker loads;
  Breaker stores;
  PrefixStoreStats counters;
  std::vector<std::shared_ptr<Load>> results;
  std::deque<Write> writes;                              // wait
  std::unordered_map<RecordName, std::int64_t> touches;  // wait: the time of the last use
  std::int64_t num_writes = 0;                           // wait, or are being written
  bool has_store_job = true;                             // the first one is the owner's
  bool has_begun = false;
  bool is_prepared = false;
  std::optional<Clock::TimePoint> load_since;   // of the find or read at hand
  std::optional<Clock::TimePoint> batch_since;  // of the writes or touches at hand
  std::vector<RecordName> gone;                 // for the owner: not there, or not any more
  std::vector<RecordName> still_doubted;        // for the owner: of those in doubt, not replaced

  void say(const std::string& line) {
    const std::lock_guard lock(log_mutex);
    if (log) {
      log(line);
    }
  }
  void call_wake() {
    const std::lock_guard lock(wake_mutex);
    if (wake) {
      wake();
    }
  }

  bool stores_are_stopped() const {
    const std::lock_guard lock(mutex);
    return stores.is_open();
  }
  // Both without the lock.
  void note_success(Breaker Shared::*breaker, std::string_view what) {
    bool is_back = false;
    {
      const std::lock_guard lock(mutex);
      is_back = (this->*breaker).succeed();
    }
    if (is_back) {
      say(fmt::format("{}: {} work again", backend->describe(), what));
    }
  }
  void note_failure(Breaker Shared::*breaker, std::string_view what, const std::string& reason,
                    bool at_once) {
    bool is_news = false;
    {
      const std::lock_guard lock(mutex);
      is_news = (this->*breaker).fail(clock.now(), reason, at_once);
    }
    if (is_news) {
      say(fmt::format("{}: {} stop for a while: {}", backend->describe(), what, reason));
    }
  }

  // Both with the lock.
  bool loads_hang() const { return load_since && clock.now() - *load_since > load_limit; }
  bool stores_hang() const { return batch_since && clock.now() - *batch_since > store_limit; }
  // Whether they hang; they stop then. In one step: what has just answered is not stopped.
  bool note_hang(Breaker Shared::*breaker, bool (Shared::*hang)() const, std::string_view what) {
    constexpr std::string_view kReason = "no answer in time";
    bool is_news = false;
    {
      const std::lock_guard lock(mutex);
      if (!(this->*hang)()) {
        return false;
      }
      Breaker& stopped = this->*breaker;
      is_news = !stopped.is_open() && stopped.fail(clock.now(), std::string(kReason), true);
    }
    if (is_news) {
      say(fmt::format("{}: {} stop for a while: {}", backend->describe(), what, kReason));
    }
    return true;
  }
  void begin(std::optional<Clock::TimePoint> Shared::*since) {
    const std::lock_guard lock(mutex);
    this->*since = clock.now();
  }

  void run(const std::shared_ptr<Load>& load);
  std::optional<Status> do_read(Load& load);
  // Of what is there under the key.
  RecordProblem problem_of(const RecordKey& key, ReadOutcome outcome, const Buffer& record) const {
    return outcome == ReadOutcome::kRead ? check_record(shape, key, record.record())
                                         : RecordProblem::kLength;
  }
  void note_bad(const RecordKey& key, RecordProblem problem, std::string_view what_happens);
  // True: none runs, so one must be submitted. With the lock.
  bool needs_store_job() { return !std::exchange(has_store_job, true); }

  void run_stores();
  void run_batch(std::deque<Write>& batch);
  void note_dropped(const Write& write);  // with the lock
  void drop_writes_if_stopped();
  void run_touches(std::span<const RecordUse> uses);
  // True: it took so long that it was taken to hang.
  bool end_batch() {
    const std::lock_guard lock(mutex);
    const bool hung = stores_hang();
    batch_since.reset();
    return hung;
  }
  WriteReport write_batch(std::deque<Write>& batch);
  enum class Check { kWhole, kNotWhole, kFailed };
  Check check_again(const RecordKey& key);
};

void PrefixStore::Shared::run(const std::shared_ptr<Load>& load) {
  if (load->is_cancelled) {
    return;
  }
  begin(&Shared::load_since);
  std::optional<Status> error;
  if (load->key) {
    error = do_read(*load);
  } else {
    const auto present = backend->count_present(load->chain);
    if (present) {
      load->num_present = std::min(*present, load->chain.size());
    } else {
      error = present.error();
    }
  }
  {
    const std::lock_guard lock(mutex);
    load_since.reset();
  }
  if (error) {
    note_failure(&Shared::loads, "loads", error->message(), false);
  } else {
    note_success(&Shared::loads, "loads");
  }
  {
    const std::lock_guard lock(mutex);
    counters.load_errors += error ? 1 : 0;
    results.push_back(load);
  }
  call_wake();
}

std::optional<Status> PrefixStore::Shared::do_read(Load& load) {
  const RecordKey& key = *load.key;
  Buffer buffer(shape.record_bytes());
  const auto outcome = backend->read(key.name, buffer.record());
  if (!outcome) {
    return outcome.error();
  }
  const RecordProblem problem = problem_of(key, *outcome, buffer);
  if (problem == RecordProblem::kNone) {
    load.buffer = std::move(buffer);
    return std::nullopt;
  }
  if (*outcome != ReadOutcome::kAbsent) {
    if (load.is_cancelled) {
      return std::nullopt;  // a whole one may have taken its place since it was read
    }
    backend->remove(key.name);
    note_bad(key, problem, "removed");
  }
  load.is_missing = true;
  const std::lock_guard lock(mutex);
  gone.push_back(key.name);
  return std::nullopt;
}

void PrefixStore::Shared::note_bad(const RecordKey& key, RecordProblem problem,
                                   std::string_view what_happens) {
  say(fmt::format("{}: record {} is not used and {}: its {} is wrong", backend->describe(),
                  key.name.hex(), what_happens, to_string(problem)));
  const std::lock_guard lock(mutex);
  ++counters.bad_records;
}

// All that wait. Writes and touches take turns: neither keeps the other waiting for ever.
void PrefixStore::Shared::run_stores() {
  bool must_write = false;  // the first time also none: what is there is counted
  {
    const std::lock_guard lock(mutex);
    must_write = !std::exchange(has_begun, true);
  }
  while (true) {
    std::deque<Write> batch;
    std::vector<RecordUse> uses;
    {
      const std::lock_guard lock(mutex);
      while (!writes.empty() && batch.size() < kWritesOfBatch) {
        batch.push_back(std::move(writes.front()));
        writes.pop_front();
      }
      while (!touches.empty() && uses.size() < kTouchesOfBatch) {
        const auto first = touches.begin();
        uses.push_back({first->first, first->second});
        touches.erase(first);
      }
      if (batch.empty() && uses.empty() && !must_write) {
        has_store_job = false;
        return;
      }
    }
    if (!batch.empty() || must_write) {
      run_batch(batch);
    }
    if (!uses.empty()) {
      run_touches(uses);
    }
    must_write = false;
  }
}

void PrefixStore::Shared::run_touches(std::span<const RecordUse> uses) {
  begin(&Shared::batch_since);
  backend->touch(uses);
  // A touch that fails is no failure, but one that came back ends what it was taken for.
  if (end_batch()) {
    note_success(&Shared::stores, "stores");
  }
}

void PrefixStore::Shared::run_batch(std::deque<Write>& batch) {
  begin(&Shared::batch_since);
  const WriteReport report = write_batch(batch);
  end_batch();
  const std::unordered_set<RecordName> stored(report.stored.begin(), report.stored.end());
  {
    const std::lock_guard lock(mutex);
    num_writes -= static_cast<std::int64_t>(batch.size());
    counters.store_errors += report.problem ? 1 : 0;
    for (const Write& write : batch) {
      if (stored.contains(write.key.name)) {
        ++counters.stored_blocks;
        counters.stored_bytes += static_cast<std::int64_t>(write.buffer.record().size());
      } else {
        note_dropped(write);
      }
    }
    gone.insert(gone.end(), report.removed.begin(), report.removed.end());
    is_prepared = is_prepared && !report.problem;
  }
  if (report.problem) {
    const StatusCode code = report.problem->code();
    note_failure(&Shared::stores, "stores", report.problem->message(),
                 code == StatusCode::kResourceExhausted || code == StatusCode::kUnavailable);
    drop_writes_if_stopped();
  } else {
    note_success(&Shared::stores, "stores");
  }
}

void PrefixStore::Shared::note_dropped(const Write& write) {
  ++counters.dropped_blocks;
  gone.push_back(write.key.name);
  if (write.is_doubted) {
    still_doubted.push_back(write.key.name);
  }
}

// They were taken when it still worked. Each of their batches would be one more attempt.
void PrefixStore::Shared::drop_writes_if_stopped() {
  const std::lock_guard lock(mutex);
  if (!stores.is_open()) {
    return;
  }
  for (const Write& write : writes) {
    note_dropped(write);
  }
  num_writes -= static_cast<std::int64_t>(writes.size());
  writes.clear();
}

WriteReport PrefixStore::Shared::write_batch(std::deque<Write>& batch) {
  bool must_prepare = false;
  {
    const std::lock_guard lock(mutex);
    must_prepare = !std::exchange(is_prepared, true);
  }
  if (must_prepare) {
    if (auto prepared = backend->prepare(); !prepared) {
      return {{}, {}, std::move(prepared.error())};
    }
  }
  std::vector<RecordWrite> records;
  std::vector<RecordUse> whole;
  bool can_check = true;
  for (Write& write : batch) {
    const RecordUse use{write.key.name, write.use_time_ns};
    if (write.is_doubted && can_check) {
      const Check check = check_again(write.key);
      if (check == Check::kWhole) {
        whole.push_back(use);
        continue;
      }
      // What cannot be read is replaced as well, and the rest rather than to wait for each failure.
      can_check = check != Check::kFailed;
    }
    seal_record(shape, write.key, write.buffer.record());
    records.push_back({use, write.buffer.record(), write.is_doubted});
  }
  WriteReport report = backend->write(records);
  if (!whole.empty()) {
    backend->touch(whole);
  }
  for (const RecordUse& use : whole) {
    report.stored.push_back(use.name);
  }
  return report;
}

PrefixStore::Shared::Check PrefixStore::Shared::check_again(const RecordKey& key) {
  Buffer there(shape.record_bytes());
  const auto outcome = backend->reread(key.name, there.record());
  if (!outcome) {
    return Check::kFailed;
  }
  if (*outcome == ReadOutcome::kAbsent) {
    return Check::kNotWhole;
  }
  const RecordProblem problem = problem_of(key, *outcome, there);
  if (problem == RecordProblem::kNone) {
    return Check::kWhole;
  }
  note_bad(key, problem, "replaced");
  return Check::kNotWhole;
}

PrefixStore::PrefixStore(const PrefixStoreOptions& options, std::shared_ptr<RecordBackend> backend,
                         const Clock& clock)
    : options_(options),
      clock_(clock),
      shared_(std::make_shared<Shared>(options, std::move(backend), clock)) {
  KAREZ_CHECK(options.shape.payload_bytes > 0, "a record has a payload");
  store_lane_.submit([shared = shared_] { shared->run_stores(); });
}

PrefixStore::~PrefixStore() {
  set_wake({});
  if (!shared_->stores_are_stopped()) {
    store_lane_.wait_until_idle(kFlushLimit);
  }
  const std::lock_guard lock(shared_->log_mutex);
  shared_->log = {};
}

std::optional<PrefixStore::Ticket> PrefixStore::submit_load(std::shared_ptr<Load> load) {
  {
    const std::lock_guard lock(shared_->mutex);
    // A thread that hangs is not given more to do, however long the pause was.
    if (shared_->loads_hang() || !shared_->loads.allow(clock_.now())) {
      return std::nullopt;
    }
  }
  load->ticket = ++last_ticket_;
  loads_.emplace(load->ticket, load);
  num_reads_ += load->key ? 1U : 0U;
  load_lane_.submit([shared = shared_, load] { shared->run(load); });
  return load->ticket;
}

std::optional<PrefixStore::Ticket> PrefixStore::find(std::vector<RecordName> chain) {
  auto load = std::make_shared<Load>();
  load->chain = std::move(chain);
  return submit_load(std::move(load));
}

std::optional<PrefixStore::Ticket> PrefixStore::read(const RecordKey& key) {
  if (num_reads_ >= max_reads()) {
    return std::nullopt;
  }
  auto load = std::make_shared<Load>();
  load->key = key;
  return submit_load(std::move(load));
}

std::size_t PrefixStore::max_reads() const {
  return static_cast<std::size_t>(
      records_in(options_.load_staging_bytes, options_.shape.record_bytes()));
}

bool PrefixStore::loads_stopped() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->loads.is_open();
}

void PrefixStore::cancel(Ticket ticket) {
  const auto found = loads_.find(ticket);
  if (found != loads_.end()) {
    found->second->is_cancelled = true;
    num_reads_ -= found->second->key ? 1U : 0U;
    loads_.erase(found);
  }
}

void PrefixStore::poll(std::vector<Result>& results) {
  std::vector<std::shared_ptr<Load>> done;
  std::vector<RecordName> gone;
  std::vector<RecordName> still_doubted;
  {
    const std::lock_guard lock(shared_->mutex);
    done.swap(shared_->results);
    gone.swap(shared_->gone);
    still_doubted.swap(shared_->still_doubted);
  }
  for (const RecordName& name : gone) {
    known_.erase(name);
  }
  doubt(still_doubted);
  for (const std::shared_ptr<Load>& load : done) {
    const auto found = loads_.find(load->ticket);
    if (found == loads_.end()) {
      continue;  // cancelled, or late
    }
    loads_.erase(found);
    num_reads_ -= load->key ? 1U : 0U;
    for (std::size_t i = 0; i < load->num_present; ++i) {
      if (!doubted_.contains(load->chain[i])) {
        know(load->chain[i]);
      }
    }
    if (load->buffer && doubted_.erase(load->key->name) > 0) {
      know(load->key->name);
    }
    results.push_back({load->ticket, load->num_present, std::move(load->buffer), load->is_missing});
  }
  if (shared_->note_hang(&Shared::loads, &Shared::loads_hang, "loads")) {
    {
      const std::lock_guard lock(shared_->mutex);
      shared_->counters.late_loads += static_cast<std::int64_t>(loads_.size());
    }
    for (const auto& [ticket, load] : std::exchange(loads_, {})) {
      load->is_cancelled = true;
      results.push_back({ticket, 0, std::nullopt, false});
    }
    num_reads_ = 0;
  }
  shared_->note_hang(&Shared::stores, &Shared::stores_hang, "stores");
}

void PrefixStore::set_wake(std::function<void()> wake) {
  const std::lock_guard lock(shared_->wake_mutex);
  shared_->wake = std::move(wake);
}

void PrefixStore::know(const RecordName& name) {
  if (known_.size() >= kMaxKnown) {
    known_.clear();
  }
  known_.insert(name);
}

void PrefixStore::doubt(std::span<const RecordName> names) {
  for (const RecordName& name : names) {
    known_.erase(name);
    if (doubted_.size() >= kMaxKnown) {
      doubted_.clear();
    }
    doubted_.insert(name);
  }
}

std::optional<PrefixStore::Buffer> PrefixStore::room_to_write() {
  {
    const std::lock_guard lock(shared_->mutex);
    if (shared_->stores_hang() ||
        shared_->num_writes >=
            records_in(options_.store_staging_bytes, options_.shape.record_bytes()) ||
        !shared_->stores.allow(clock_.now())) {
      return std::nullopt;
    }
  }
  return Buffer(options_.shape.record_bytes());
}

void PrefixStore::write(const RecordKey& key, std::int64_t use_time_ns, Buffer buffer) {
  KAREZ_CHECK(buffer.record().size() == options_.shape.record_bytes(), "from room_to_write()");
  const bool is_doubted = doubted_.erase(key.name) > 0;
  know(key.name);
  bool needs_job = false;
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->writes.push_back({key, use_time_ns, std::move(buffer), is_doubted});
    ++shared_->num_writes;
    needs_job = shared_->needs_store_job();
  }
  if (needs_job) {
    store_lane_.submit([shared = shared_] { shared->run_stores(); });
  }
}

void PrefixStore::touch(std::span<const RecordUse> uses) {
  bool needs_job = false;
  {
    const std::lock_guard lock(shared_->mutex);
    if (shared_->stores.is_open() || shared_->stores_hang()) {
      return;
    }
    for (const RecordUse& use : uses) {
      const auto found = shared_->touches.find(use.name);
      if (found != shared_->touches.end()) {
        found->second = std::max(found->second, use.use_time_ns);
      } else if (shared_->touches.size() < kMaxTouches) {
        shared_->touches.emplace(use.name, use.use_time_ns);
      }
    }
    needs_job = !shared_->touches.empty() && shared_->needs_store_job();
  }
  if (needs_job) {
    store_lane_.submit([shared = shared_] { shared->run_stores(); });
  }
}

void PrefixStore::count_dropped(std::int64_t blocks) {
  const std::lock_guard lock(shared_->mutex);
  shared_->counters.dropped_blocks += blocks;
}

PrefixStoreStats PrefixStore::stats() const {
  PrefixStoreStats stats;
  {
    const std::lock_guard lock(shared_->mutex);
    stats = shared_->counters;
    stats.loads_stopped = shared_->loads.is_open() || shared_->loads_hang();
    stats.stores_stopped = shared_->stores.is_open() || shared_->stores_hang();
  }
  stats.usage = shared_->backend->usage();
  return stats;
}

}  // namespace karez
