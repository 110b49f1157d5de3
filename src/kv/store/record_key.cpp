#include "kv/store/record_key.h"

#include <algorithm>

namespace karez {

Sha256Digest identity_digest(std::string_view identity) {
  Sha256 hash;
  hash.add_text("karez prefix identity");
  hash.add_text(identity);
  return hash.finish();
}

RecordChain::RecordChain(const Sha256Digest& identity, std::string_view salt) {
  Sha256 hash;
  hash.add_text("karez prefix root");
  hash.add(identity);
  hash.add_text(salt);
  last_.digest = hash.finish();
}

RecordKey RecordChain::next(std::span<const TokenId, kBlockSize> tokens) {
  RecordKey key;
  key.parent = last_;
  std::ranges::copy(tokens, key.tokens.begin());
  key.index = num_blocks_++;
  Sha256 hash;
  hash.add_text("karez prefix block");
  hash.add(last_.digest);
  hash.add(std::as_bytes(tokens));
  last_.digest = hash.finish();
  key.name = last_;
  return key;
}

std::vector<RecordKey> record_keys(const Sha256Digest& identity, std::string_view salt,
                                   std::span<const TokenId> tokens, std::size_t num_blocks) {
  RecordChain chain(identity, salt);
  std::vector<RecordKey> keys;
  keys.reserve(num_blocks);
  for (std::size_t i = 0; i < num_blocks; ++i) {
    keys.push_back(chain.next(tokens.subspan(i * kBlockSize).first<kBlockSize>()));
  }
  return keys;
}

}  // namespace karez
