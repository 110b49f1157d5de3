#include "engine/home_tier.h"

#include <utility>

#include "kv/kv_types.h"
#include "kv/tier/disk_tier.h"
#include "kv/tier/host_tier.h"
#include "kv/tier/throttled_tier.h"

namespace karez {

Expected<std::unique_ptr<Tier>> make_home_tier(const KVCacheSpec& spec, const HomeOptions& options,
                                               std::shared_ptr<ExportMemory> memory) {
  if (options.disk_bytes > 0) {
    auto disk = DiskTier::create({.directory = options.disk_directory,
                                  .block_bytes = spec.slot_bytes(),
                                  .capacity_bytes = options.disk_bytes});
    if (!disk) {
      return fail(disk.error().code(), "--kv-disk-bytes: " + disk.error().message());
    }
    return std::move(*disk);
  }
  if (options.host_bytes == 0) {
    return nullptr;
  }
  const HostTierOptions host_options{
      .block_bytes = spec.slot_bytes(), .capacity_bytes = options.host_bytes, .num_workers = 0};
  auto host = memory == nullptr
                  ? HostTier::create(host_options)
                  : HostTier::create(host_options, ExportMemory::arena(std::move(memory)));
  if (!host) {
    return fail(host.error().code(), "--kv-host-bytes: " + host.error().message());
  }
  std::unique_ptr<Tier> tier = std::move(*host);
  if (options.throttle) {
    tier = std::make_unique<ThrottledTier>(std::move(tier), *options.throttle);
  }
  return tier;
}

int decode_floor_tokens(const SparseOptions& sparse) {
  return sparse.is_on() ? sparse.token_budget + sparse.token_budget / 2 + 2 * kBlockSize : 0;
}

}  // namespace karez
