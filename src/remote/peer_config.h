// PeerConfig: what two nodes must have in common for KV of one to be KV of the other.
//
// Thread: values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"

namespace karez {

struct PeerConfig {
  static constexpr std::size_t kMaxNameBytes = 16;

  std::array<std::uint8_t, 32> model_digest = {};
  std::uint32_t num_layers = 0;
  std::uint32_t num_kv_heads = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t block_tokens = 0;
  std::uint64_t block_bytes = 0;     // of one layer and head, as it lies at home
  std::string kv_type;               // "bf16"; names are at most kMaxNameBytes of printable ASCII
  std::string index_kind;            // "r2"; "none": no key index travels
  std::uint64_t index_bytes = 0;     // of one block, layer and head; 0 with "none"
  std::string wire_type = "native";  // how blocks travel (wire_blocks.h): the consumer's choice
  std::uint32_t max_tokens = 0;      // this node's longest sequence; may differ between peers

  friend bool operator==(const PeerConfig&, const PeerConfig&) = default;
};

// Fails: kInvalidArgument naming the field that this node itself cannot have.
std::optional<Status> check_peer_config(const PeerConfig& config);

// nullopt: the two fit together. Else kInvalidArgument: "peers do not fit: block_tokens is 16 here
// and 32 there". max_tokens is not compared. wire_type is, so an exporter takes the consumer's
// first, if it knows it.
std::optional<Status> find_mismatch(const PeerConfig& here, const PeerConfig& there);

}  // namespace karez
