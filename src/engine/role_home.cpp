#include "engine/role_home.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "engine/exported_index.h"
#include "kv/tier/host_tier.h"
#include "kv/window_blocks.h"
#include "remote/wire_blocks.h"

namespace karez {
namespace {

// Sequences that are admitted sparsely at a time; each costs some bytes of metadata a block.
constexpr int kMaxAdmitted = 32;

Expected<void> check(const RoleHomeOptions& options) {
  const RoleOptions& role = options.role;
  if (role.produces() && options.home.host_bytes == 0) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("--kv-role {} needs --kv-host-bytes: consumers read the KV from there",
                            to_string(role.role)));
  }
  if (!role.consumes() || role.admit == KvAdmit::kFull) {
    return {};
  }
  if (!options.sparse.is_on()) {
    return fail(StatusCode::kInvalidArgument,
                "--kv-admit sparse needs --token-budget: dense attention reads all of the KV in "
                "every step");
  }
  if (!options.home.is_on()) {
    return fail(
        StatusCode::kInvalidArgument,
        "--kv-admit sparse needs --kv-host-bytes or --kv-disk-bytes: what is generated here "
        "has to lie somewhere too");
  }
  return {};
}

PeerConfig config_of(const KVCacheSpec& spec, const RoleHomeOptions& options) {
  PeerConfig config;
  // The model's own: what else must be equal has fields, which a refusal names.
  config.model_digest = std::bit_cast<std::array<std::uint8_t, 32>>(options.model_digest);
  config.num_layers = static_cast<std::uint32_t>(spec.num_layers);
  config.num_kv_heads = static_cast<std::uint32_t>(spec.num_kv_heads);
  config.head_dim = static_cast<std::uint32_t>(spec.head_dim);
  config.block_tokens = kBlockSize;
  config.block_bytes = spec.slot_bytes();
  config.kv_type = to_string(spec.type);
  config.index_kind = "none";
  if (options.sparse.is_on()) {
    config.index_kind = to_string(options.sparse.block_index);
    config.index_bytes = exported_index_bytes(options.sparse.block_index, spec.head_dim);
  }
  config.max_tokens = static_cast<std::uint32_t>(options.context_tokens);
  return config;
}

// UCX fails for want of a way, whatever asked for it.
std::string flag_of(const Status& status, std::string_view otherwise = "") {
  return std::string(status.code() == StatusCode::kIoError ? "--kv-transports: " : otherwise);
}

}  // namespace

Expected<RoleHome> make_role_home(const KVCacheSpec& spec, const RoleHomeOptions& options) {
  RoleHome home;
  if (auto valid = check(options); !valid) {
    return fail(std::move(valid.error()));
  }
  const RoleOptions& role = options.role;
  home.config = config_of(spec, options);
  if (role.produces()) {
    auto memory = ExportMemory::create(static_cast<std::size_t>(options.home.host_bytes),
                                       {.share = has_shared_memory(role.transports)});
    if (!memory) {
      return fail(memory.error().code(), "--kv-host-bytes: " + memory.error().message());
    }
    home.memory = std::move(*memory);
  }
  auto tier = make_home_tier(spec, options.home, home.memory);
  if (!tier) {
    return fail(std::move(tier.error()));
  }
  home.tier = std::move(*tier);
  if (home.tier != nullptr) {
    home.extent_bytes = home.tier->capacity().extent_bytes;
  }
  if (!role.consumes()) {
    return home;
  }
  PeerPoolOptions pool;
  pool.config = home.config;
  pool.config.wire_type = to_string(role.wire_type);
  pool.secret = role.peer_secret;
  pool.use_shared_memory = has_shared_memory(role.transports);
  pool.one_sided_network = has_network(role.transports);
  if (const auto problem = check_wire_type(pool.config)) {
    return fail(problem->code(), "--kv-wire-type: " + problem->message());
  }
  auto made = PeerPool::create(pool);
  if (!made) {
    return fail(made.error().code(), flag_of(made.error()) + made.error().message());
  }
  home.pool = std::move(*made);
  if (role.admit == KvAdmit::kSparse) {
    const std::int64_t rows = std::int64_t{spec.num_layers} * spec.num_kv_heads;
    const std::int64_t extents = num_blocks(options.context_tokens) / kExtentBlocks + 1;
    auto remote = std::make_unique<RemoteTier>(
        std::move(home.tier), home.pool,
        RemoteTierOptions{.max_adopted_extents =
                              rows * extents * std::min(options.max_num_seqs, kMaxAdmitted)});
    home.remote = remote.get();
    home.tier = std::move(remote);
  }
  return home;
}

Expected<KvPeers> make_peers(RoleHome& home, const RoleOptions& role, KVCacheManager& kv,
                             const KeyIndex* key_index, std::string engine_id, int vocab_size,
                             std::function<void(std::string_view)> log) {
  KvPeers peers;
  peers.load_failure = role.load_failure;
  if (has_network(role.transports)) {
    log("--kv-transports: UCX's ports are open on all its network devices (UCX_NET_DEVICES), "
        "whatever --kv-host says; who reaches them can read and write the memory of this server");
  }
  if (role.produces()) {
    if (has_shared_memory(role.transports) && !home.memory->is_shared()) {
      log(
          fmt::format("--kv-transports: peers on this machine get blocks in messages, not out of "
                      "shared memory: {}",
                      home.memory->why_private()));
    }
    KvExporterOptions options;
    options.host = role.host;
    options.port = static_cast<std::uint16_t>(role.port);
    options.config = home.config;
    options.secret = role.peer_secret;
    options.lease_duration = role.lease;
    options.one_sided_network = has_network(role.transports);
    options.on_refused = [log = std::move(log)](std::string_view what) {
      log(fmt::format("--kv-port: refused {}", what));
    };
    auto exporter = KvExporter::create(options, home.memory);
    if (!exporter) {
      return fail(exporter.error().code(),
                  flag_of(exporter.error(), "--kv-port: ") + exporter.error().message());
    }
    peers.producer = std::make_unique<KvProducer>(
        kv, key_index, home.memory, std::move(*exporter),
        KvProducer::Options{role.host, std::move(engine_id), home.extent_bytes});
  }
  if (role.consumes()) {
    peers.consumer =
        std::make_unique<KvConsumer>(kv, key_index, home.pool, home.remote,
                                     KvConsumer::Options{role.admit, vocab_size, role.lease});
  }
  return peers;
}

}  // namespace karez
