// Records of a made-up prompt, whose payloads are a function of their names.
//
// Thread: pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kv/store/block_record.h"

namespace karez::test {

inline RecordShape small_shape(const std::string& identity = "a model",
                               std::size_t payload_bytes = 3000) {
  return {identity_digest(identity), payload_bytes};
}

inline std::vector<RecordKey> prompt_keys(const RecordShape& shape, std::size_t num_blocks,
                                          TokenId first = 1, const std::string& salt = "") {
  std::vector<TokenId> tokens;
  for (std::size_t i = 0; i < num_blocks * kBlockSize; ++i) {
    tokens.push_back(first + static_cast<TokenId>(i));
  }
  return record_keys(shape.identity, salt, tokens, num_blocks);
}

inline void fill_payload(const RecordKey& key, std::span<std::byte> payload) {
  for (std::size_t i = 0; i < payload.size(); ++i) {
    payload[i] = key.name.digest[i % key.name.digest.size()] ^ static_cast<std::byte>(i / 32);
  }
}

inline std::vector<std::byte> sealed_record(const RecordShape& shape, const RecordKey& key) {
  std::vector<std::byte> record(shape.record_bytes());
  fill_payload(key, std::span(record).subspan(kRecordHeaderBytes));
  seal_record(shape, key, record);
  return record;
}

}  // namespace karez::test
