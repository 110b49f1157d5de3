// Which part of prefill and decode this process does, and how it moves KV to and from its peers.
//
// Plain values; the transport is elsewhere. Names and values as the flags of `karez serve` have
// them. Thread: a value.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "base/status.h"
#include "engine/allowed_peers.h"

namespace karez {

// vLLM's words.
enum class KvRole {
  kNone,      // prefills and decodes for itself
  kProducer,  // prefills for consumers
  kConsumer,  // decodes what producers have prefilled
  kBoth,
};
std::string_view to_string(KvRole role);
// "kv_producer", "kv_consumer", "kv_both". Fails: kInvalidArgument with the list.
Expected<KvRole> parse_kv_role(std::string_view name);

// What a consumer takes in before the first token.
enum class KvAdmit {
  kFull,    // the whole KV
  kSparse,  // the key index, and blocks behind the last whole 64 tokens; the rest on demand
};
std::string_view to_string(KvAdmit admit);
Expected<KvAdmit> parse_kv_admit(std::string_view name);

// How blocks travel.
enum class KvWireType {
  kNative,  // as they are stored
  kR4,      // rotated, in 4 bits a number: a quarter of the bytes, and not quite the same KV
};
std::string_view to_string(KvWireType type);
Expected<KvWireType> parse_kv_wire_type(std::string_view name);

// The ways that blocks may take to peers; one that both sides have is used, the first of a list if
// it can be. Messages always take tcp.
enum class KvTransports {
  kSharedMemory,            // "shm,tcp": out of the memory of a peer on this machine
  kTcp,                     // "tcp": in messages
  kSharedMemoryAndNetwork,  // "shm,ucx,tcp"
  kNetwork,  // "ucx,tcp": one-sided over the network that UCX finds (RDMA); see KvExporterOptions
};
constexpr bool has_shared_memory(KvTransports transports) {
  return transports == KvTransports::kSharedMemory ||
         transports == KvTransports::kSharedMemoryAndNetwork;
}
constexpr bool has_network(KvTransports transports) {
  return transports == KvTransports::kNetwork ||
         transports == KvTransports::kSharedMemoryAndNetwork;
}
std::string_view to_string(KvTransports transports);
Expected<KvTransports> parse_kv_transports(std::string_view names);

// What becomes of a request whose KV cannot be had any more. vLLM's words.
enum class KvLoadFailure {
  kFail,       // it ends with an error
  kRecompute,  // the consumer prefills it itself
};
std::string_view to_string(KvLoadFailure policy);
Expected<KvLoadFailure> parse_kv_load_failure(std::string_view name);

struct RoleOptions {
  KvRole role = KvRole::kNone;
  std::string host = "127.0.0.1";  // an IP address: peers connect to it, so it is told to them
  int port = 5600;                 // 0: any free one
  std::string peer_secret;         // equal on all peers; empty only on loopback
  KvAdmit admit = KvAdmit::kFull;
  KvWireType wire_type = KvWireType::kNative;  // that a consumer asks for
  KvTransports transports = KvTransports::kSharedMemory;
  KvLoadFailure load_failure = KvLoadFailure::kFail;
  AllowedPeers allowed_peers;      // that a consumer takes KV from
  std::chrono::seconds lease{30};  // that a producer keeps KV for a consumer it does not hear of

  bool is_on() const { return role != KvRole::kNone; }
  bool produces() const { return role == KvRole::kProducer || role == KvRole::kBoth; }
  bool consumes() const { return role == KvRole::kConsumer || role == KvRole::kBoth; }

  // Fails: kInvalidArgument naming the flag, its value and what is allowed.
  Expected<void> validate() const;
};

}  // namespace karez
