// What a role needs below the fast tier, before there is a store: memory that consumers may read,
// a tier that reads from producers.
//
// Thread: the caller's; then the engine's. Owns: what it has not given away yet.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "engine/home_tier.h"
#include "engine/kv_peers.h"
#include "engine/role_options.h"
#include "kv/store/sha256.h"
#include "remote/export_memory.h"
#include "remote/peer_pool.h"
#include "remote/remote_tier.h"

namespace karez {

struct RoleHome {
  PeerConfig config;
  std::shared_ptr<ExportMemory> memory;  // null: nothing is exported
  std::int64_t extent_bytes = 0;         // of what lies in it
  std::shared_ptr<PeerPool> pool;        // null: nothing is admitted
  std::unique_ptr<Tier> tier;            // the store's; null: none
  RemoteTier* remote = nullptr;          // the same, if it reads from producers
};

struct RoleHomeOptions {
  RoleOptions role;
  HomeOptions home;
  SparseOptions sparse;
  Sha256Digest model_digest = {};  // model_digest(), which covers windows and RoPE too
  int context_tokens = 0;
  int max_num_seqs = 0;
};

// As make_home_tier() without a role.
// Fails: kInvalidArgument, naming the flag that the role needs too; as the tier's, the memory's and
// the pool's create().
Expected<RoleHome> make_role_home(const KVCacheSpec& spec, const RoleHomeOptions& options);

// Empty without a role. engine_id: of this process, unlike every other's.
// log: told of peers that a producer refuses, by the thread of its port.
// Fails: as KvExporter::create(), naming the flag.
Expected<KvPeers> make_peers(RoleHome& home, const RoleOptions& role, KVCacheManager& kv,
                             const KeyIndex* key_index, std::string engine_id, int vocab_size,
                             std::function<void(std::string_view)> log);

}  // namespace karez
