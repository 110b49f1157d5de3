// The bodies of the messages between nodes, as structs. docs/formats.md has them byte by byte.
//
// encode() gives a whole frame. decode_*() fail with kCorruption, naming the message and the field;
// what they give is within the limits of this node's configuration.
// Thread: values.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "remote/peer_config.h"
#include "remote/request_key.h"
#include "remote/wire_frame.h"

namespace karez {

inline constexpr std::size_t kWireBlockBytes = 16;       // offset and checksum in a manifest
inline constexpr std::uint32_t kPartBytes = 256 << 10U;  // of a manifest, in one message
inline constexpr std::size_t kMaxBlocksPerRead = 1024;
inline constexpr std::size_t kMaxHeartbeatLeases = 4096;

using Nonce = std::array<std::uint8_t, 32>;
using Proof = std::array<std::uint8_t, 32>;

struct HelloMessage {
  Nonce nonce = {};
  PeerConfig config;
};

struct HelloReplyMessage {
  Nonce nonce = {};
  Proof proof = {};
  PeerConfig config;
};

struct ConfirmMessage {
  Proof proof = {};
};

// What is needed to read the exporter's memory from outside; empty where that cannot be.
struct ReadyMessage {
  static constexpr std::size_t kMaxKeyBytes = 8192;
  std::uint64_t lease_ms = 0;
  std::uint64_t memory_address = 0;  // in the exporter's process
  std::uint64_t memory_bytes = 0;
  std::vector<std::byte> shared_worker;  // UCX's worker address for shared memory
  std::vector<std::byte> shared_key;     // UCX's remote key for it
  std::vector<std::byte> network_worker;
  std::vector<std::byte> network_key;
};

struct FetchMessage {
  RequestKey key;
  std::uint64_t epoch = 0;
};

struct ManifestMessage {
  std::uint64_t lease = 0;
  std::uint64_t epoch = 0;
  std::uint32_t num_tokens = 0;
  std::uint32_t num_blocks = 0;
  std::uint64_t index_bytes = 0;
  std::uint32_t note_bytes = 0;
};

enum class ManifestSection : std::uint32_t {
  kTokens = 1,  // i32 each
  kBlocks = 2,  // u64 offset, u64 checksum each
  kIndex = 3,
  kNote = 4,
};

struct FetchPartMessage {
  std::uint64_t lease = 0;
  ManifestSection section = ManifestSection::kTokens;
  std::uint32_t length = 0;  // at most kPartBytes
  std::uint64_t offset = 0;
};

struct PartMessage {
  FetchPartMessage part;
  std::span<const std::byte> bytes;
};

struct LeasesMessage {
  std::vector<std::uint64_t> leases;
};

struct ReleaseMessage {
  std::uint64_t lease = 0;
};

struct ReadBlocksMessage {
  std::uint64_t lease = 0;
  std::vector<std::uint32_t> blocks;  // index in the manifest
};

struct BlockDataMessage {
  std::uint64_t lease = 0;
  std::uint32_t num_blocks = 0;
  std::span<const std::byte> bytes;  // num_blocks x wire_block_bytes()
};

struct ErrorMessage {
  static constexpr std::size_t kMaxTextBytes = 1024;
  StatusCode code = StatusCode::kInternal;
  std::string text;
};

std::vector<std::byte> encode(std::uint64_t request, const HelloMessage& message);
std::vector<std::byte> encode(std::uint64_t request, const HelloReplyMessage& message);
std::vector<std::byte> encode(std::uint64_t request, const ConfirmMessage& message);
std::vector<std::byte> encode(std::uint64_t request, const ReadyMessage& message);
std::vector<std::byte> encode(std::uint64_t request, const FetchMessage& message);
std::vector<std::byte> encode(std::uint64_t request, const ManifestMessage& message);
std::vector<std::byte> encode(std::uint64_t request, const FetchPartMessage& message);
std::vector<std::byte> encode(std::uint64_t request, const PartMessage& message);
std::vector<std::byte> encode_heartbeat(std::uint64_t request, const LeasesMessage& message);
std::vector<std::byte> encode_heartbeat_ack(std::uint64_t request, const LeasesMessage& message);
std::vector<std::byte> encode(std::uint64_t request, const ReleaseMessage& message);
std::vector<std::byte> encode(std::uint64_t request, const ReadBlocksMessage& message);
std::vector<std::byte> encode(std::uint64_t request, const ErrorMessage& message);

Expected<HelloMessage> decode_hello(std::span<const std::byte> body);
Expected<HelloReplyMessage> decode_hello_reply(std::span<const std::byte> body);
Expected<ConfirmMessage> decode_confirm(std::span<const std::byte> body);
Expected<ReadyMessage> decode_ready(std::span<const std::byte> body);
Expected<FetchMessage> decode_fetch(std::span<const std::byte> body);
// The counts fit the configuration and each other.
Expected<ManifestMessage> decode_manifest(std::span<const std::byte> body, const PeerConfig& config,
                                          std::uint64_t max_index_bytes);
Expected<FetchPartMessage> decode_fetch_part(std::span<const std::byte> body);
Expected<PartMessage> decode_part(std::span<const std::byte> body);
Expected<LeasesMessage> decode_leases(std::span<const std::byte> body);
Expected<ReleaseMessage> decode_release(std::span<const std::byte> body);
Expected<ReadBlocksMessage> decode_read_blocks(std::span<const std::byte> body,
                                               const PeerConfig& config);
Expected<BlockDataMessage> decode_block_data(std::span<const std::byte> body,
                                             const PeerConfig& config);
// Text that is not printable ASCII comes out as question marks.
Expected<ErrorMessage> decode_error(std::span<const std::byte> body);

// How many blocks travel in one message.
std::size_t blocks_per_message(const PeerConfig& config);

}  // namespace karez
