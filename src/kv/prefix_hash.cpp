#include "kv/prefix_hash.h"

#include <xxhash.h>

#include <array>
#include <cstring>
#include <string>

namespace karez {

namespace {

PrefixHash hash_bytes(const void* data, std::size_t size) {
  const XXH128_hash_t hash = XXH3_128bits(data, size);
  return {hash.low64, hash.high64};
}

}  // namespace

PrefixHash root_hash(std::string_view identity, std::string_view salt) {
  std::string text;
  for (const std::string_view part : {identity, salt}) {
    const std::uint64_t size = part.size();
    text.append(reinterpret_cast<const char*>(&size), sizeof(size));
    text.append(part);
  }
  return hash_bytes(text.data(), text.size());
}

PrefixHash block_hash(const PrefixHash& parent, std::span<const TokenId, kBlockSize> tokens) {
  std::array<std::byte, sizeof(PrefixHash) + kBlockSize * sizeof(TokenId)> bytes;
  std::memcpy(bytes.data(), &parent, sizeof(parent));
  std::memcpy(bytes.data() + sizeof(parent), tokens.data(), tokens.size_bytes());
  return hash_bytes(bytes.data(), bytes.size());
}

PrefixHash cut_hash(PrefixHash hash, int num_bits) {
  if (num_bits <= 64) {
    hash.high = 0;
    hash.low &= ~std::uint64_t{0} >> (64 - num_bits);
  } else if (num_bits < 128) {
    hash.high &= ~std::uint64_t{0} >> (128 - num_bits);
  }
  return hash;
}

}  // namespace karez
