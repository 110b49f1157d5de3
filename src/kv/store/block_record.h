// A stored prefix block, byte by byte: a header of 192 bytes, then the payload.
//
// The payload is the block's bytes of each layer and KV head, [layer][kv_head][block bytes] as
// kv/block_layout.h has them. The header repeats everything that a hit compares; the layout is in
// docs/formats.md. Numbers are little-endian.
//
// Nothing of a record is believed: check_record() compares all of it with the key that was asked
// for and the geometry that the caller has, and touches no byte outside of the span.
// Thread: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kv/store/record_key.h"

namespace karez {

inline constexpr std::size_t kRecordHeaderBytes = 192;
inline constexpr std::uint32_t kRecordVersion = 1;

// What all records of one store have in common.
struct RecordShape {
  Sha256Digest identity = {};     // identity_digest()
  std::size_t payload_bytes = 0;  // > 0

  std::size_t record_bytes() const { return kRecordHeaderBytes + payload_bytes; }
};

// Why a record is not used.
enum class RecordProblem {
  kNone,
  kLength,           // not header and payload
  kMagic,            // not a record
  kHeaderChecksum,   // damaged
  kVersion,          // of another format, older or newer
  kIdentity,         // of another model, type or layout
  kContent,          // other tokens, or behind others
  kPayloadChecksum,  // damaged
};
std::string_view to_string(RecordProblem problem);

// Fills the header of a record whose payload is there.
// Requires: record.size() is shape.record_bytes().
void seal_record(const RecordShape& shape, const RecordKey& key, std::span<std::byte> record);

// kNone: the payload is that of the key.
RecordProblem check_record(const RecordShape& shape, const RecordKey& key,
                           std::span<const std::byte> record);

}  // namespace karez
