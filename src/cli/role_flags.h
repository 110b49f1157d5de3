// The flags of prefill and decode on different nodes.
//
// Roles and policies have vLLM's words; its --kv-transfer-config is another way to say the same.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"
#include "engine/role_options.h"

namespace CLI {
class App;
}

namespace karez {

// As typed; empty: not given.
struct RoleFlags {
  std::string role;
  std::string host;
  std::optional<std::int64_t> port;
  std::string peer_secret;  // or KAREZ_KV_SECRET
  std::string peer_secret_file;
  std::string admit;
  std::string wire_type;
  std::string transports;
  std::string load_failure;
  std::string allow_peers;
  std::optional<std::int64_t> lease_seconds;
  std::string config;  // JSON
};

void add_role_flags(CLI::App& command, RoleFlags& flags);

// Reads the secret's file.
// Fails: kInvalidArgument naming the flag or the JSON key, its value and what is allowed;
// kNotFound, kIoError for --kv-peer-secret-file.
Expected<RoleOptions> check_role_flags(const RoleFlags& flags);

}  // namespace karez
