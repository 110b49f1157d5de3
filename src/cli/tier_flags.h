// The flags of the tiers below the fast one, shared by the commands that run a model.
#pragma once

#include <string>

#include "base/status.h"
#include "engine/home_tier.h"

namespace CLI {
class App;
}

namespace karez {

// As typed; empty: not given.
struct TierFlags {
  std::string host_bytes;
  std::string host_throttle;
  std::string disk_bytes;
  std::string disk_directory;
};

void add_tier_flags(CLI::App& command, TierFlags& flags);

// Fails: kInvalidArgument naming the flag, its value and what is allowed.
Expected<HomeOptions> check_tier_flags(const TierFlags& flags);

}  // namespace karez
