// libFuzzer target: any bytes as a stored prefix record. Build and run:
//   cmake --preset fuzz && cmake --build --preset fuzz --target record_fuzzer
//   mkdir NEW_INPUTS
//   build/fuzz/fuzz/record_fuzzer -max_total_time=120 -max_len=400 NEW_INPUTS fuzz/corpus/record
// No test replays that folder; what it finds becomes a case of block_record_test.cpp.
// What passes the checks is, byte for byte, what the writer makes of that payload. The last byte of
// an input says whether its header's checksum is mended first: else none would get past that.
#include <xxhash.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "support/store/prompt_records.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace karez;
  static const RecordShape shape = test::small_shape("a model", 64);
  static const RecordKey key = test::prompt_keys(shape, 2)[1];
  if (size == 0) {
    return 0;
  }
  const auto input = std::as_bytes(std::span(data, size));
  std::vector<std::byte> record(input.begin(), input.end() - 1);
  if (input.back() != std::byte{0} && record.size() >= kRecordHeaderBytes) {
    const std::uint64_t checksum = XXH3_64bits(record.data(), kRecordHeaderBytes - 8);
    std::memcpy(record.data() + kRecordHeaderBytes - 8, &checksum, sizeof(checksum));
  }
  if (check_record(shape, key, record) == RecordProblem::kNone) {
    std::vector<std::byte> sealed = record;
    seal_record(shape, key, sealed);
    if (sealed.size() != record.size() ||
        !std::equal(sealed.begin(), sealed.begin() + 168, record.begin())) {
      std::abort();
    }
  }
  return 0;
}
