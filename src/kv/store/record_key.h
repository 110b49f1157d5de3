// What a stored prefix block is called, and what it claims to hold.
//
//   identity  = SHA-256 of a text: everything besides the tokens that changes the KV
//   root      = SHA-256(identity, salt)
//   block i   = SHA-256(block i-1 or root, the 16 token ids)
//
// Unlike the names of the prefix cache in memory (kv/prefix_hash.h) these are cryptographic:
// folders and pools outlive a process, and others write to them.
// Thread: values.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/hex.h"
#include "base/token.h"
#include "kv/kv_types.h"
#include "kv/store/sha256.h"

namespace karez {

struct RecordName {
  Sha256Digest digest = {};

  std::string hex() const { return to_hex(digest); }
  friend auto operator<=>(const RecordName&, const RecordName&) = default;
};

// One block of a prompt: its name, and what the record must repeat for a hit.
struct RecordKey {
  RecordName name;
  RecordName parent;
  std::array<TokenId, kBlockSize> tokens = {};
  std::uint32_t index = 0;  // in the prompt: tokens [16 index, 16 index + 16)
};

// Digest of what changes the KV besides the tokens.
Sha256Digest identity_digest(std::string_view identity);

// The keys of the first full blocks of a prompt, one after the other.
class RecordChain {
 public:
  RecordChain(const Sha256Digest& identity, std::string_view salt);

  // Of the next block.
  RecordKey next(std::span<const TokenId, kBlockSize> tokens);
  std::uint32_t num_blocks() const { return num_blocks_; }

 private:
  RecordName last_;
  std::uint32_t num_blocks_ = 0;
};

// Of the first num_blocks blocks. Requires: tokens has as many.
std::vector<RecordKey> record_keys(const Sha256Digest& identity, std::string_view salt,
                                   std::span<const TokenId> tokens, std::size_t num_blocks);

}  // namespace karez

template <>
struct std::hash<karez::RecordName> {
  std::size_t operator()(const karez::RecordName& name) const noexcept {
    std::size_t value = 0;
    std::memcpy(&value, name.digest.data(), sizeof(value));
    return value;
  }
};
