#include "engine/stored_prefixes.h"

#include <fmt/format.h>

#include <utility>

#include "engine/block_payload.h"
#include "kv/kv_types.h"
#include "kv/store/disk_records.h"
#include "kv/store/redis_records.h"

namespace karez {

Expected<std::unique_ptr<PrefixStore>> make_prefix_store(
    const KVCacheSpec& spec, std::string_view identity, const StoreOptions& options,
    std::function<void(std::string_view)> log) {
  if (!options.is_on()) {
    return nullptr;
  }
  PrefixStoreOptions store;
  store.shape = {identity_digest(identity), payload_bytes_of(spec)};
  store.log = std::move(log);
  if (options.remote) {
    if (options.remote->use_tls) {
      // So that a wrong file shows now, and not in each connection.
      if (const auto context = make_tls_context(options.remote_tls); !context) {
        return fail(context.error().code(), "--kv-remote-" + context.error().message());
      }
    }
    return std::make_unique<PrefixStore>(
        store, std::make_shared<RedisRecords>(RedisRecordsOptions{
                   .address = *options.remote, .tls = options.remote_tls, .shape = store.shape}));
  }
  const std::int64_t least = DiskRecords::least_cap_bytes(store.shape);
  if (options.disk_bytes < least) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("{} is {}, allowed are {} bytes and more: {} tokens of this model take "
                            "{} bytes",
                            options.disk_bytes_flag, options.disk_bytes, least, kBlockSize,
                            store.shape.record_bytes()));
  }
  auto disk = DiskRecords::open({.directory = options.disk_directory,
                                 .cap_bytes = options.disk_bytes,
                                 .shape = store.shape,
                                 .reserve_bytes = 0,
                                 .intercept = {}});
  if (!disk) {
    return fail(disk.error().code(), "--kv-disk-path: " + disk.error().message());
  }
  return std::make_unique<PrefixStore>(store, std::move(*disk));
}

}  // namespace karez
