// Where records are kept: a folder, a pool on the network. Calls block; PrefixStore makes them from
// its own threads, with deadlines, and decides what a failure means.
//
// A backend moves whole records and looks at none of their bytes. It may lose any of them at any
// time; it never returns one under another name on purpose, and nobody relies on that.
// Thread: reads (count_present, read, remove) from one thread, writes (prepare, reread, write,
// touch) from another, at the same time; usage() from any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "kv/store/record_key.h"

namespace karez {

// When the prompt was used, earlier for blocks further back: of one prompt its end goes first.
struct RecordUse {
  RecordName name;
  std::int64_t use_time_ns = 0;  // since 1970
};

struct RecordWrite {
  RecordUse use;
  std::span<const std::byte> record;
  bool replaces = false;  // also one that is there already, else that stays
};

struct WriteReport {
  std::vector<RecordName> stored;   // complete and durable, or there already
  std::vector<RecordName> removed;  // to make room
  std::optional<Status> problem;    // why some are not stored
};

struct BackendUsage {
  std::int64_t used_bytes = 0;
  std::int64_t cap_bytes = 0;  // 0: the backend's own business
  std::int64_t records = 0;
  std::int64_t removed = 0;  // to make room, since start
};

enum class ReadOutcome { kRead, kAbsent, kWrongLength };

// Failures: kResourceExhausted: full; kUnavailable: cannot be written to, or cannot be reached;
// kIoError: the rest.
class RecordBackend {
 public:
  RecordBackend() = default;
  virtual ~RecordBackend() = default;
  RecordBackend(const RecordBackend&) = delete;
  RecordBackend& operator=(const RecordBackend&) = delete;

  // At the start, and again after a failure before the next write.
  virtual Expected<void> prepare() = 0;
  // How many of the chain's first records are there, without a gap. A hint.
  virtual Expected<std::size_t> count_present(std::span<const RecordName> chain) = 0;
  // Fills all of `record`, or says why not.
  virtual Expected<ReadOutcome> read(const RecordName& name, std::span<std::byte> record) = 0;
  // As read(), for one that is about to be written.
  virtual Expected<ReadOutcome> reread(const RecordName& name, std::span<std::byte> record) = 0;
  virtual WriteReport write(std::span<const RecordWrite> records) = 0;
  // Of a record that was found to be bad.
  virtual void remove(const RecordName& name) = 0;
  // Those of them that are there were used. Failures are nobody's loss.
  virtual void touch(std::span<const RecordUse> uses) = 0;
  virtual BackendUsage usage() const = 0;
  virtual std::string describe() const = 0;
};

}  // namespace karez
