// The store of prefix blocks that a user asks for.
//
// Thread: values, and functions without state.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "kv/kv_cache_spec.h"
#include "kv/store/prefix_store.h"
#include "kv/store/redis_address.h"
#include "kv/store/tls_client.h"

namespace karez {

// At most one of the two.
struct StoreOptions {
  std::string disk_directory;  // empty: no folder
  std::int64_t disk_bytes = 0;
  std::string_view disk_bytes_flag = "--kv-disk-bytes";  // that says it
  std::optional<RedisAddress> remote;
  TlsFiles remote_tls;            // with remote->use_tls
  double load_limit_seconds = 5;  // that a request waits for stored blocks at most

  bool is_on() const { return !disk_directory.empty() || remote.has_value(); }
};

// Null if none is asked for. identity: kv_identity(). log: as PrefixStoreOptions.
// Fails: as DiskRecords::open() and make_tls_context(), with the flag's name.
Expected<std::unique_ptr<PrefixStore>> make_prefix_store(const KVCacheSpec& spec,
                                                         std::string_view identity,
                                                         const StoreOptions& options,
                                                         std::function<void(std::string_view)> log);

}  // namespace karez
