// Reads arbitrary bytes as a stored record: what the fuzzer calls, and the test that replays its
// findings.
//
// Thread: no state.
#pragma once

#include <xxhash.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/check.h"
#include "support/store/prompt_records.h"

namespace karez::test {

// What passes the checks is, byte for byte, what the writer makes of that payload; else it aborts.
// The last byte of an input says whether its header's checksum is mended first: else none would get
// past that.
inline RecordProblem read_any_record(std::span<const std::byte> input) {
  static const RecordShape shape = small_shape("m", 64);  // the record of docs/formats.md
  static const RecordKey key = prompt_keys(shape, 2)[1];
  constexpr std::size_t kChecksumBytes = 8;
  if (input.empty()) {
    return RecordProblem::kLength;
  }
  std::vector<std::byte> record(input.begin(), input.end() - 1);
  if (input.back() != std::byte{0} && record.size() >= kRecordHeaderBytes) {
    const std::size_t at = kRecordHeaderBytes - kChecksumBytes;
    const std::uint64_t checksum = XXH3_64bits(record.data(), at);
    std::memcpy(record.data() + at, &checksum, kChecksumBytes);
  }
  const RecordProblem problem = check_record(shape, key, record);
  if (problem == RecordProblem::kNone) {
    constexpr std::ptrdiff_t kMeaningfulBytes = 168;  // then reserved ones, and the checksum of all
    std::vector<std::byte> sealed = record;
    seal_record(shape, key, sealed);
    KAREZ_CHECK(sealed.size() == record.size() &&
                    std::equal(sealed.begin(), sealed.begin() + kMeaningfulBytes, record.begin()),
                "what is accepted is what is written");
  }
  return problem;
}

}  // namespace karez::test
