#include "engine/role_options.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <utility>

#include "base/host_port.h"
#include "base/ip_address.h"

namespace karez {
namespace {

constexpr std::int64_t kMaxLeaseSeconds = 86'400;
constexpr std::size_t kMinSecretBytes = 16;
constexpr std::size_t kMaxSecretBytes = 4096;

template <typename Enum>
struct Named {
  std::string_view name;
  Enum value;
};

constexpr std::array<Named<KvRole>, 3> kRoles = {{
    {"kv_producer", KvRole::kProducer},
    {"kv_consumer", KvRole::kConsumer},
    {"kv_both", KvRole::kBoth},
}};
constexpr std::array<Named<KvAdmit>, 2> kAdmits = {{
    {"full", KvAdmit::kFull},
    {"sparse", KvAdmit::kSparse},
}};
constexpr std::array<Named<KvWireType>, 2> kWireTypes = {{
    {"native", KvWireType::kNative},
    {"r4", KvWireType::kR4},
}};
constexpr std::array<Named<KvTransports>, 4> kTransports = {{
    {"shm,tcp", KvTransports::kSharedMemory},
    {"tcp", KvTransports::kTcp},
    {"shm,ucx,tcp", KvTransports::kSharedMemoryAndNetwork},
    {"ucx,tcp", KvTransports::kNetwork},
}};
constexpr std::array<Named<KvLoadFailure>, 2> kLoadFailures = {{
    {"fail", KvLoadFailure::kFail},
    {"recompute", KvLoadFailure::kRecompute},
}};

template <typename Enum, std::size_t count>
Expected<Enum> parse(std::string_view name, const std::array<Named<Enum>, count>& known,
                     const char* separator = ", ") {
  std::string allowed;
  for (const Named<Enum>& one : known) {
    if (one.name == name) {
      return one.value;
    }
    allowed += (allowed.empty() ? "" : separator) + std::string(one.name);
  }
  return fail(StatusCode::kInvalidArgument,
              fmt::format("there is no '{}', allowed is {}", name, allowed));
}

template <typename Enum, std::size_t count>
std::string_view name_of(Enum value, const std::array<Named<Enum>, count>& known) {
  for (const Named<Enum>& one : known) {
    if (one.value == value) {
      return one.name;
    }
  }
  return "none";
}

}  // namespace

std::string_view to_string(KvRole role) { return name_of(role, kRoles); }
Expected<KvRole> parse_kv_role(std::string_view name) { return parse(name, kRoles); }

std::string_view to_string(KvAdmit admit) { return name_of(admit, kAdmits); }
Expected<KvAdmit> parse_kv_admit(std::string_view name) { return parse(name, kAdmits); }

std::string_view to_string(KvWireType type) { return name_of(type, kWireTypes); }
Expected<KvWireType> parse_kv_wire_type(std::string_view name) { return parse(name, kWireTypes); }

std::string_view to_string(KvTransports transports) { return name_of(transports, kTransports); }
Expected<KvTransports> parse_kv_transports(std::string_view names) {
  return parse(names, kTransports, " or ");
}

std::string_view to_string(KvLoadFailure policy) { return name_of(policy, kLoadFailures); }
Expected<KvLoadFailure> parse_kv_load_failure(std::string_view name) {
  return parse(name, kLoadFailures);
}

Expected<void> RoleOptions::validate() const {
  if (!is_on()) {
    return {};
  }
  const auto address = parse_ip_address(host);
  if (!address || address->is_any()) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("--kv-host is '{}', allowed are IP addresses of this machine that the "
                            "peers can reach: they are told it",
                            host));
  }
  if (port < 0 || port > kMaxPort) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("--kv-port is {}, allowed are 0 (any free one) to {}", port, kMaxPort));
  }
  if (lease.count() < 1 || lease.count() > kMaxLeaseSeconds) {
    return fail(StatusCode::kInvalidArgument, fmt::format("--kv-lease is {}, allowed are 1 to {}",
                                                          lease.count(), kMaxLeaseSeconds));
  }
  if (peer_secret.empty() && !address->is_loopback()) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("--kv-host is {}, which is not a loopback address: peers there must "
                            "share a secret (--kv-peer-secret-file, or KAREZ_KV_SECRET)",
                            host));
  }
  if (peer_secret.empty() && consumes() && allowed_peers.go_beyond_loopback()) {
    return fail(StatusCode::kInvalidArgument,
                "--kv-allow-peers names others than this machine: such peers must share a secret "
                "(--kv-peer-secret-file, or KAREZ_KV_SECRET)");
  }
  if (!peer_secret.empty() &&
      (peer_secret.size() < kMinSecretBytes || peer_secret.size() > kMaxSecretBytes)) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("the peer secret has {} bytes, allowed are {} to {}",
                            peer_secret.size(), kMinSecretBytes, kMaxSecretBytes));
  }
  return {};
}

}  // namespace karez
