#include "engine/home_tier.h"

#include <algorithm>
#include <utility>

#include "attention/block_selector.h"
#include "kv/kv_types.h"
#include "kv/tier/disk_tier.h"
#include "kv/tier/host_tier.h"
#include "kv/tier/throttled_tier.h"
#include "kv/window_blocks.h"

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

int decode_read_tokens(const SparseOptions& sparse, const KVCacheSpec& spec) {
  if (!sparse.is_on()) {
    return 0;
  }
  for (int layer = 0; layer < std::min(sparse.dense_layers, spec.num_layers); ++layer) {
    if (spec.layer_windows.empty() || spec.layer_windows[static_cast<std::size_t>(layer)] == 0) {
      return 0;
    }
  }
  // Contexts that are selected whole, and long ones, whose rows lie anywhere in their block.
  auto blocks = static_cast<int>(num_blocks(sparse.token_budget));
  const int far = sparse.token_budget + sparse.recent_window + sparse.sink_tokens + kBlockSize;
  for (int position = far; position < far + kBlockSize; ++position) {
    blocks = std::max(blocks, selection_shape(sparse.rule(), position).num_selected());
  }
  return blocks * kBlockSize;
}

int decode_floor_tokens(const SparseOptions& sparse) {
  return sparse.is_on() ? sparse.token_budget + sparse.token_budget / 2 + 2 * kBlockSize : 0;
}

}  // namespace karez
