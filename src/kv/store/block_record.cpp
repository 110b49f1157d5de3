#include "kv/store/block_record.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>

#include "base/check.h"

namespace karez {
namespace {

static_assert(std::endian::native == std::endian::little, "records are little-endian");

constexpr std::string_view kMagic = "KAREZKV\n";

// Where fields lie.
constexpr std::size_t kVersionAt = 8;
constexpr std::size_t kHeaderBytesAt = 12;
constexpr std::size_t kIdentityAt = 16;
constexpr std::size_t kParentAt = 48;
constexpr std::size_t kIndexAt = 80;
constexpr std::size_t kNumTokensAt = 84;
constexpr std::size_t kTokensAt = 88;
constexpr std::size_t kPayloadBytesAt = 152;
constexpr std::size_t kPayloadChecksumAt = 160;
constexpr std::size_t kReservedAt = 168;
constexpr std::size_t kHeaderChecksumAt = 184;
static_assert(kTokensAt + sizeof(TokenId) * kBlockSize == kPayloadBytesAt);
static_assert(kHeaderChecksumAt + sizeof(std::uint64_t) == kRecordHeaderBytes);

template <class T>
void put(std::span<std::byte> record, std::size_t at, const T& value) {
  std::memcpy(record.data() + at, &value, sizeof(value));
}

template <class T>
T get(std::span<const std::byte> record, std::size_t at) {
  T value;
  std::memcpy(&value, record.data() + at, sizeof(value));
  return value;
}

template <class T>
bool has(std::span<const std::byte> record, std::size_t at, const T& value) {
  return std::memcmp(record.data() + at, &value, sizeof(value)) == 0;
}

std::uint64_t checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace

std::string_view to_string(RecordProblem problem) {
  switch (problem) {
    case RecordProblem::kNone:
      return "none";
    case RecordProblem::kLength:
      return "length";
    case RecordProblem::kMagic:
      return "magic";
    case RecordProblem::kHeaderChecksum:
      return "header checksum";
    case RecordProblem::kVersion:
      return "version";
    case RecordProblem::kIdentity:
      return "identity";
    case RecordProblem::kContent:
      return "content";
    case RecordProblem::kPayloadChecksum:
      return "payload checksum";
  }
  return "unknown";
}

void seal_record(const RecordShape& shape, const RecordKey& key, std::span<std::byte> record) {
  KAREZ_CHECK(record.size() == shape.record_bytes(), "a record has one size");
  std::memcpy(record.data(), kMagic.data(), kMagic.size());
  put(record, kVersionAt, kRecordVersion);
  put(record, kHeaderBytesAt, static_cast<std::uint32_t>(kRecordHeaderBytes));
  put(record, kIdentityAt, shape.identity);
  put(record, kParentAt, key.parent.digest);
  put(record, kIndexAt, key.index);
  put(record, kNumTokensAt, static_cast<std::uint32_t>(kBlockSize));
  put(record, kTokensAt, key.tokens);
  put(record, kPayloadBytesAt, static_cast<std::uint64_t>(shape.payload_bytes));
  put(record, kPayloadChecksumAt, checksum(record.subspan(kRecordHeaderBytes)));
  std::fill_n(record.begin() + kReservedAt, kHeaderChecksumAt - kReservedAt, std::byte{0});
  put(record, kHeaderChecksumAt, checksum(record.first(kHeaderChecksumAt)));
}

RecordProblem check_record(const RecordShape& shape, const RecordKey& key,
                           std::span<const std::byte> record) {
  if (record.size() < kRecordHeaderBytes) {
    return RecordProblem::kLength;
  }
  if (std::memcmp(record.data(), kMagic.data(), kMagic.size()) != 0) {
    return RecordProblem::kMagic;
  }
  if (get<std::uint64_t>(record, kHeaderChecksumAt) != checksum(record.first(kHeaderChecksumAt))) {
    return RecordProblem::kHeaderChecksum;
  }
  if (!has(record, kVersionAt, kRecordVersion) ||
      !has(record, kHeaderBytesAt, static_cast<std::uint32_t>(kRecordHeaderBytes))) {
    return RecordProblem::kVersion;
  }
  if (!has(record, kIdentityAt, shape.identity)) {
    return RecordProblem::kIdentity;
  }
  if (!has(record, kParentAt, key.parent.digest) || !has(record, kIndexAt, key.index) ||
      !has(record, kNumTokensAt, static_cast<std::uint32_t>(kBlockSize)) ||
      !has(record, kTokensAt, key.tokens)) {
    return RecordProblem::kContent;
  }
  if (record.size() != shape.record_bytes() ||
      !has(record, kPayloadBytesAt, static_cast<std::uint64_t>(shape.payload_bytes))) {
    return RecordProblem::kLength;
  }
  const bool is_whole = get<std::uint64_t>(record, kPayloadChecksumAt) ==
                        checksum(record.subspan(kRecordHeaderBytes));
  return is_whole ? RecordProblem::kNone : RecordProblem::kPayloadChecksum;
}

}  // namespace karez
