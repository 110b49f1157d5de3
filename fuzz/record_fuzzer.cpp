// libFuzzer target: any bytes as a stored prefix record. Build and run:
//   cmake --preset fuzz && cmake --build --preset fuzz --target record_fuzzer
//   mkdir NEW_INPUTS
//   build/fuzz/fuzz/record_fuzzer -max_total_time=120 -max_len=400 NEW_INPUTS fuzz/corpus/record
// Put what it finds into fuzz/corpus/record: the unit tests replay that folder.
#include <cstddef>
#include <cstdint>
#include <span>

#include "support/store/read_any_record.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  karez::test::read_any_record(std::as_bytes(std::span(data, size)));
  return 0;
}
