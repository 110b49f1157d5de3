// The chained hash that names a block by its content and everything before it.
//
//   root     = XXH3_128(identity, salt)            each with its length, so that no two pairs agree
//   block i  = XXH3_128(block i-1 or root, the 16 token ids)
//
// The hash only finds; PrefixCache compares what was hashed. XXH3 is not a cryptographic hash, and
// need not be one for that reason.
// Thread: pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "base/token.h"
#include "kv/kv_types.h"

namespace karez {

struct PrefixHash {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  friend bool operator==(const PrefixHash&, const PrefixHash&) = default;
};

// identity: everything besides the tokens that changes the KV (model, layout, type, positions).
PrefixHash root_hash(std::string_view identity, std::string_view salt);
PrefixHash block_hash(const PrefixHash& parent, std::span<const TokenId, kBlockSize> tokens);
// Keeps the lowest num_bits in [1, 128]. Tests cut hashes short to force collisions.
PrefixHash cut_hash(PrefixHash hash, int num_bits);

}  // namespace karez

template <>
struct std::hash<karez::PrefixHash> {
  std::size_t operator()(const karez::PrefixHash& key) const noexcept { return key.low; }
};
