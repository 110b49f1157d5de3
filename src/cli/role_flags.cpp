#include "cli/role_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "cli/text_file.h"

namespace karez {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxSecretFileBytes = 8192;
// Of vLLM's connectors the one whose two-step protocol is spoken here.
constexpr const char* kConnector = "NixlConnector";

tl::unexpected<Status> wrong_config(const std::string& what) {
  return fail(StatusCode::kInvalidArgument, "--kv-transfer-config: " + what);
}

Expected<void> set_text(const std::string& key, const json& value, const char* flag,
                        std::string& target) {
  if (!value.is_string()) {
    return wrong_config(fmt::format("{} is {}, allowed is a string", key, value.dump()));
  }
  if (!target.empty()) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("{} and {} of --kv-transfer-config are given, allowed is one of the "
                            "two",
                            flag, key));
  }
  target = value.get<std::string>();
  return {};
}

Expected<void> set_number(const std::string& key, const json& value, const char* flag,
                          std::optional<std::int64_t>& target) {
  if (!value.is_number_integer() ||
      (value.is_number_unsigned() && value.get<std::uint64_t>() > std::uint64_t{INT32_MAX})) {
    return wrong_config(fmt::format("{} is {}, allowed is an integer", key, value.dump()));
  }
  if (target) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("{} and {} of --kv-transfer-config are given, allowed is one of the "
                            "two",
                            flag, key));
  }
  target = value.get<std::int64_t>();
  return {};
}

Expected<void> check_connector(const json& value) {
  if (value != kConnector) {
    return wrong_config(
        fmt::format("kv_connector is {}, allowed is \"{}\"", value.dump(), kConnector));
  }
  return {};
}

Expected<void> read_extra_config(const json& extra, RoleFlags& flags) {
  if (!extra.is_object()) {
    return wrong_config(
        fmt::format("kv_connector_extra_config is {}, allowed is an object", extra.dump()));
  }
  for (const auto& [key, value] : extra.items()) {
    if (key != "kv_lease_duration") {
      return wrong_config(fmt::format(
          "there is no key '{}' in kv_connector_extra_config, there is kv_lease_duration", key));
    }
    if (auto set = set_number(key, value, "--kv-lease", flags.lease_seconds); !set) {
      return set;
    }
  }
  return {};
}

// What --kv-transfer-config says, as if it had been said by flags.
Expected<RoleFlags> with_config(const RoleFlags& typed) {
  const json config = json::parse(typed.config, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) {
    return wrong_config(R"(not a JSON object such as {"kv_role":"kv_producer"})");
  }
  RoleFlags flags = typed;
  for (const auto& [key, value] : config.items()) {
    Expected<void> read;
    if (key == "kv_connector") {
      read = check_connector(value);
    } else if (key == "kv_role") {
      read = set_text(key, value, "--kv-role", flags.role);
    } else if (key == "kv_ip") {
      read = set_text(key, value, "--kv-host", flags.host);
    } else if (key == "kv_port") {
      read = set_number(key, value, "--kv-port", flags.port);
    } else if (key == "kv_load_failure_policy") {
      read = set_text(key, value, "--kv-load-failure", flags.load_failure);
    } else if (key == "kv_connector_extra_config") {
      read = read_extra_config(value, flags);
    } else {
      read = wrong_config(
          fmt::format("there is no key '{}', there are kv_connector, kv_role, kv_ip, kv_port, "
                      "kv_load_failure_policy, kv_connector_extra_config",
                      key));
    }
    if (!read) {
      return fail(std::move(read.error()));
    }
  }
  if (flags.role.empty()) {
    return wrong_config("kv_role is missing, needed is kv_producer, kv_consumer or kv_both");
  }
  return flags;
}

// Flags that say something about what this server does not do.
Expected<void> check_is_used(const RoleFlags& flags, const RoleOptions& options) {
  struct Use {
    const char* flag;
    bool is_given;
    bool is_used;
    const char* needs;
  };
  const char* any = "--kv-role";
  const char* consumer = "--kv-role kv_consumer or kv_both";
  const char* producer = "--kv-role kv_producer or kv_both";
  for (const Use& use : {
           Use{"--kv-host", !flags.host.empty(), options.is_on(), any},
           Use{"--kv-port", flags.port.has_value(), options.is_on(), any},
           Use{"--kv-peer-secret-file", !flags.peer_secret_file.empty(), options.is_on(), any},
           Use{"--kv-transports", !flags.transports.empty(), options.is_on(), any},
           Use{"--kv-admit", !flags.admit.empty(), options.consumes(), consumer},
           Use{"--kv-allow-peers", !flags.allow_peers.empty(), options.consumes(), consumer},
           Use{"--kv-wire-type", !flags.wire_type.empty(), options.consumes(), consumer},
           Use{"--kv-load-failure", !flags.load_failure.empty(), options.consumes(), consumer},
           Use{"--kv-lease", flags.lease_seconds.has_value(), options.produces(), producer},
       }) {
    if (use.is_given && !use.is_used) {
      return fail(StatusCode::kInvalidArgument,
                  fmt::format("{} needs {}; without it, it has no effect", use.flag, use.needs));
    }
  }
  return {};
}

template <typename Enum>
Expected<void> set_name(const char* flag, const std::string& text,
                        Expected<Enum> (*parse)(std::string_view), Enum& target) {
  if (text.empty()) {
    return {};
  }
  const auto value = parse(text);
  if (!value) {
    return fail(value.error().code(), fmt::format("{}: {}", flag, value.error().message()));
  }
  target = *value;
  return {};
}

Expected<std::string> secret_of(const RoleFlags& flags) {
  if (flags.peer_secret_file.empty()) {
    return flags.peer_secret;
  }
  auto text = read_text_file(flags.peer_secret_file, kMaxSecretFileBytes);
  if (!text) {
    return fail(text.error().code(), "--kv-peer-secret-file: " + text.error().message());
  }
  while (text->ends_with('\n') || text->ends_with('\r')) {
    text->pop_back();
  }
  if (text->empty()) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("--kv-peer-secret-file {} is empty", flags.peer_secret_file));
  }
  return std::move(*text);
}

}  // namespace

void add_role_flags(CLI::App& command, RoleFlags& flags) {
  const std::string group = "Prefill and decode on different nodes";
  const auto text = [&](const char* name, std::string& value, const char* type, const char* help) {
    return command.add_option(name, value, help)->type_name(type)->group(group);
  };
  text("--kv-role", flags.role, "ROLE",
       "kv_producer (prefills for others), kv_consumer (decodes what others have prefilled) or "
       "kv_both");
  text("--kv-host", flags.host, "ADDRESS",
       "Address for the KV of peers, which are told it (default: 127.0.0.1)");
  command
      .add_option("--kv-port", flags.port,
                  "Port for the KV of peers; 0: any free one (default: 5600)")
      ->type_name("N")
      ->group(group);
  text("--kv-peer-secret-file", flags.peer_secret_file, "FILE",
       "A secret that all peers share; needed off loopback");
  text("--kv-peer-secret", flags.peer_secret, "TEXT",
       "The same; others on this machine see command lines, so better by the environment")
      ->envname("KAREZ_KV_SECRET");
  text("--kv-admit", flags.admit, "HOW",
       "What a consumer takes in before the first token: full, or sparse: the key index and the "
       "last tokens, the rest when attention selects it (default: full)");
  text("--kv-wire-type", flags.wire_type, "TYPE",
       "How KV comes to a consumer: native, or r4: 4 bits a number, a quarter of the bytes, not "
       "quite the same KV (default: native)");
  text("--kv-transports", flags.transports, "LIST",
       "Ways of blocks from peers: shm,tcp (shared memory where the peer is on this machine), tcp "
       "(messages), shm,ucx,tcp or ucx,tcp (RDMA or what else UCX finds; on both sides, and on a "
       "network of machines that trust each other) (default: shm,tcp)");
  text(
      "--kv-allow-peers", flags.allow_peers, "LIST",
      "Producers that a consumer connects to when a request says so, IP addresses or networks with "
      "commas: 10.0.0.0/24,10.1.0.7:5600; or any (default: those of this machine)");
  text("--kv-load-failure", flags.load_failure, "POLICY",
       "What becomes of a request whose KV is lost: fail or recompute (default: fail)");
  command
      .add_option("--kv-lease", flags.lease_seconds,
                  "Seconds that a producer keeps KV for a consumer that it does not hear of "
                  "(default: 30)")
      ->type_name("SECONDS")
      ->group(group);
  text("--kv-transfer-config", flags.config, "JSON", "The same as vLLM has it");
}

Expected<RoleOptions> check_role_flags(const RoleFlags& typed) {
  RoleFlags flags = typed;
  if (!typed.config.empty()) {
    auto said = with_config(typed);
    if (!said) {
      return fail(std::move(said.error()));
    }
    flags = std::move(*said);
  }
  RoleOptions options;
  for (auto& set :
       {set_name("--kv-role", flags.role, parse_kv_role, options.role),
        set_name("--kv-admit", flags.admit, parse_kv_admit, options.admit),
        set_name("--kv-wire-type", flags.wire_type, parse_kv_wire_type, options.wire_type),
        set_name("--kv-transports", flags.transports, parse_kv_transports, options.transports),
        set_name("--kv-load-failure", flags.load_failure, parse_kv_load_failure,
                 options.load_failure)}) {
    if (!set) {
      return fail(set.error());
    }
  }
  if (auto used = check_is_used(flags, options); !used) {
    return fail(std::move(used.error()));
  }
  if (!options.is_on()) {
    return options;
  }
  if (!flags.allow_peers.empty()) {
    auto peers = AllowedPeers::parse(flags.allow_peers);
    if (!peers) {
      return fail(peers.error().code(), "--kv-allow-peers: " + peers.error().message());
    }
    options.allowed_peers = std::move(*peers);
  }
  constexpr std::int64_t kMaxInt = std::numeric_limits<int>::max();
  if (!flags.host.empty()) {
    options.host = flags.host == "localhost" ? "127.0.0.1" : flags.host;
  }
  options.port =
      static_cast<int>(std::clamp<std::int64_t>(flags.port.value_or(options.port), -1, kMaxInt));
  options.lease = std::chrono::seconds(
      std::clamp<std::int64_t>(flags.lease_seconds.value_or(options.lease.count()), -1, kMaxInt));
  auto secret = secret_of(flags);
  if (!secret) {
    return fail(std::move(secret.error()));
  }
  options.peer_secret = std::move(*secret);
  if (auto valid = options.validate(); !valid) {
    return fail(std::move(valid.error()));
  }
  return options;
}

}  // namespace karez
