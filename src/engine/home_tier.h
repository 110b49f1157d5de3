// Where the KV lives below the fast tier, as a user asks for it.
//
// Thread: values, and a function without state.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "attention/sparse_rows.h"
#include "base/status.h"
#include "engine/lookahead.h"
#include "kv/kv_cache_spec.h"
#include "kv/tier/throttle.h"
#include "kv/tier/tier.h"
#include "remote/export_memory.h"

namespace karez {

// At most one of the two byte counts is not 0.
struct HomeOptions {
  std::int64_t host_bytes = 0;
  std::int64_t disk_bytes = 0;
  std::string disk_directory;
  std::optional<Throttle> throttle;  // of the host tier
  LookaheadOptions lookahead;

  bool is_on() const { return host_bytes > 0 || disk_bytes > 0; }
};

// Null if no home is asked for. The host tier copies on the calling thread: where all cores
// compute, a worker of its own takes turns with them.
// Fails: as HostTier::create() and DiskTier::create(), with the flag's name.
// memory: of options.host_bytes, for a host tier whose blocks others read; null: the tier's own.
Expected<std::unique_ptr<Tier>> make_home_tier(const KVCacheSpec& spec, const HomeOptions& options,
                                               std::shared_ptr<ExportMemory> memory = nullptr);

// The tokens of a decoding sequence that should be in the fast tier (SchedulerOptions): what its
// rows select, half as much again for what they select next, and the block that is written.
int decode_floor_tokens(const SparseOptions& sparse);
// What one of its rows reads at most (SchedulerOptions). 0: a layer reads everything.
int decode_read_tokens(const SparseOptions& sparse, const KVCacheSpec& spec);

}  // namespace karez
