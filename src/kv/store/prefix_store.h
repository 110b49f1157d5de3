// Prefix blocks that outlive the process: find, read and write them without ever waiting.
//
//   owner thread: find, read, write, touch --> two lanes, a thread each: loads, stores
//                 poll <-- results            (RecordBackend: a folder, a pool on the network)
//
// Nobody above waits for a medium. If a load takes too long, it and all behind it have failed (what
// is merely slow is the caller's to give up); a medium that
// fails again and again, or hangs, is not used for a while (Breaker), loads and stores apart. What
// cannot be stored at once is not stored. At the end what still hangs is left behind.
//
// Nothing that comes back is believed: check_record(). A bad record is a miss and is removed.
// Others that are in doubt are read before they are written again, and stay if they are whole.
//
// Memory: staging for loads and for stores apart, each bounded, and one record; 32 bytes and a hash
// table's rest for each record that is known to be there or in doubt, and for each touch that
// waits.
// Thread: one owner thread; stats(), set_wake() from any. log is called from the lanes.
// Owns: lanes, staging, and a share of the backend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/clock.h"
#include "kv/store/block_record.h"
#include "kv/store/breaker.h"
#include "kv/store/record_backend.h"
#include "kv/store/work_lane.h"

namespace karez {

struct PrefixStoreOptions {
  RecordShape shape;
  std::int64_t load_staging_bytes = 64 << 20;              // at least 4 records
  std::int64_t store_staging_bytes = 64 << 20;             // at least 4 records
  Clock::Duration load_limit = std::chrono::seconds(5);    // for one find or read, once begun
  Clock::Duration store_limit = std::chrono::seconds(30);  // for one batch of writes or touches
  BreakerOptions breaker;
  std::function<void(std::string_view)>
      log;  // a line when loads or stores stop and go on; or empty
};

struct PrefixStoreStats {
  std::int64_t stored_blocks = 0;  // written, or found to be there already
  std::int64_t stored_bytes = 0;
  std::int64_t dropped_blocks = 0;  // not stored: no room in the queue, or stores have stopped
  std::int64_t bad_records = 0;
  std::int64_t load_errors = 0;
  std::int64_t store_errors = 0;
  std::int64_t late_loads = 0;
  bool loads_stopped = false;
  bool stores_stopped = false;
  BackendUsage usage;
};

class PrefixStore {
 public:
  // A record being made, header and payload.
  class Buffer {
   public:
    Buffer() = default;
    explicit Buffer(std::size_t bytes)
        : bytes_(std::make_unique_for_overwrite<std::byte[]>(bytes)), size_(bytes) {}
    std::span<std::byte> record() { return {bytes_.get(), size_}; }
    std::span<const std::byte> record() const { return {bytes_.get(), size_}; }
    std::span<std::byte> payload() { return record().subspan(kRecordHeaderBytes); }
    std::span<const std::byte> payload() const { return record().subspan(kRecordHeaderBytes); }

   private:
    std::unique_ptr<std::byte[]> bytes_;
    std::size_t size_ = 0;
  };
  using Ticket = std::uint64_t;
  struct Result {
    Ticket ticket = 0;
    std::size_t num_present = 0;   // of find()
    std::optional<Buffer> buffer;  // of read(): the record; none: there is none, or it came late
    bool is_missing = false;       // of read(): for sure there is none, or it was bad
  };

  // The clock outlives the process.
  PrefixStore(const PrefixStoreOptions& options, std::shared_ptr<RecordBackend> backend,
              const Clock& clock = Clock::steady());
  // Waits some seconds for writes that were accepted, unless stores have stopped.
  ~PrefixStore();
  PrefixStore(const PrefixStore&) = delete;
  PrefixStore& operator=(const PrefixStore&) = delete;

  const RecordShape& shape() const { return options_.shape; }

  // How many of the first records of the chain are there. None: loads have stopped.
  [[nodiscard]] std::optional<Ticket> find(std::vector<RecordName> chain);
  // None: no room in staging, or loads have stopped.
  [[nodiscard]] std::optional<Ticket> read(const RecordKey& key);
  bool loads_stopped() const;
  // Reads under way.
  std::size_t num_reads() const { return num_reads_; }
  // How many of them staging has room for. What poll() has handed over is not counted any more: a
  // caller that keeps it counts it itself.
  std::size_t max_reads() const;
  // Its result does not come any more.
  void cancel(Ticket ticket);
  // Results since the last call, those that are late included.
  void poll(std::vector<Result>& results);
  // Called from the lanes when there may be results. Empty: nobody; after the return no call goes
  // on.
  void set_wake(std::function<void()> wake);

  // Whether the record is there, or on its way, as far as is known.
  bool is_known(const RecordName& name) const { return known_.contains(name); }
  // What is there under these names may be bad: they are not known any more, and what write() finds
  // there is checked, and stays only if it is whole.
  void doubt(std::span<const RecordName> names);
  // Room for one more record to be written. None: not now.
  [[nodiscard]] std::optional<Buffer> room_to_write();
  void write(const RecordKey& key, std::int64_t use_time_ns, Buffer buffer);
  // Records were used. Those that wait are merged; what does not fit, and all while stores have
  // stopped, is forgotten: it is only the time of the last use.
  static constexpr std::size_t kMaxTouches = 1 << 14;  // that wait
  void touch(std::span<const RecordUse> uses);
  // Blocks that the caller gives up to store.
  void count_dropped(std::int64_t blocks);

  PrefixStoreStats stats() const;

 private:
  struct Shared;
  struct Load;
  std::optional<Ticket> submit_load(std::shared_ptr<Load> load);
  void know(const RecordName& name);

  const PrefixStoreOptions options_;
  const Clock& clock_;
  std::shared_ptr<Shared> shared_;
  std::unordered_map<Ticket, std::shared_ptr<Load>> loads_;
  std::unordered_set<RecordName> known_;
  std::unordered_set<RecordName> doubted_;  // none of them is known
  Ticket last_ticket_ = 0;
  std::size_t num_reads_ = 0;
  WorkLane load_lane_;
  WorkLane store_lane_;
};

}  // namespace karez
