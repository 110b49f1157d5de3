// WireBlocks: blocks as they travel in messages. "native": as they lie at home. "r4": rotated, in 4
// bits a number, about a quarter of bf16; what arrives is not quite what was sent off.
//
//   r4:  u64 checksum, then the block as a page of attention/archive_page.h
//
// The checksum is the XXH3-64 of the page, its seed the checksum of the block that it was made of.
// So it says that these bytes left the exporter, and that they stand for the block of the manifest.
// Thread: a value; calls are independent. Owns: nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/status.h"
#include "kv/kv_types.h"
#include "remote/peer_config.h"

namespace karez {

inline constexpr std::string_view kNativeWire = "native";
inline constexpr std::string_view kR4Wire = "r4";

bool is_wire_type(std::string_view name);

// nullopt: blocks of this shape can travel so. Else kInvalidArgument, naming the field and what is
// allowed.
std::optional<Status> check_wire_type(const PeerConfig& config);

// Of one block in a message. Requires: check_wire_type() has nothing to say.
std::size_t wire_block_bytes(const PeerConfig& config);

class WireBlocks {
 public:
  // Requires: as wire_block_bytes().
  explicit WireBlocks(const PeerConfig& config);

  std::size_t bytes() const { return wire_bytes_; }
  // What arrives is what was sent off.
  bool is_exact() const { return !type_.has_value(); }
  // block: as it lies at home; out: bytes().
  void put(const std::byte* block, std::byte* out) const;
  // checksum: of the block at the exporter, by the manifest. False: these bytes are not that block;
  // nothing is written.
  [[nodiscard]] bool take(const std::byte* in, std::uint64_t checksum, std::byte* block) const;

 private:
  std::size_t block_bytes_;
  std::size_t wire_bytes_;
  int head_dim_ = 0;
  std::optional<KvType> type_;  // none: native
};

}  // namespace karez
