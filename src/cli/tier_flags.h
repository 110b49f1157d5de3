// The flags of the tiers below the fast one, shared by the commands that run a model.
#pragma once

#include <string>

#include "attention/sparse_rows.h"
#include "base/status.h"
#include "engine/home_tier.h"
#include "engine/on_miss.h"
#include "engine/spec_options.h"
#include "engine/stored_prefixes.h"

namespace CLI {
class App;
}

namespace karez {

// As typed; empty: not given.
struct TierFlags {
  std::string host_bytes;
  std::string host_throttle;
  std::string disk_bytes;
  std::string disk_path;
  std::string disk_prefix_bytes;
  std::string remote;  // or KAREZ_KV_REMOTE
  std::string remote_ca;
  std::string remote_cert;
  std::string remote_key;
  double load_timeout_seconds = 5;
  std::string lookahead = "off";
  std::string fetch_cap;
  std::string on_miss = "wait";
};

void add_tier_flags(CLI::App& command, TierFlags& flags);
// Those of prefix blocks that outlive the process; besides the others.
void add_store_flags(CLI::App& command, TierFlags& flags);

// Where prefix blocks are kept; takes what it needs of --kv-disk-bytes, so that `flags` is then
// about a home tier alone. Before check_tier_flags(), and only for a command with
// add_store_flags(). Fails: as check_tier_flags().
Expected<StoreOptions> check_store_flags(TierFlags& flags);
// Fails: kInvalidArgument naming the flag, its value and what is allowed.
Expected<HomeOptions> check_tier_flags(const TierFlags& flags);
// --lookahead and --fetch-cap, into `home`; makes `sparse` tell, and `spec` draft, what the sources
// need. After the checks of all three. Fails: kInvalidArgument for a source that has nothing to go
// by.
Expected<void> check_lookahead(const TierFlags& flags, SpecOptions& spec, HomeOptions& home,
                               SparseOptions& sparse);
// A bound makes `sparse` tell what lists are worth.
// Fails: kInvalidArgument for another text, or a bound without rows that select or without a tier.
Expected<OnMiss> check_on_miss(const TierFlags& flags, const HomeOptions& home,
                               SparseOptions& sparse);

}  // namespace karez
