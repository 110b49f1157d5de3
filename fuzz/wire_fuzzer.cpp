// libFuzzer target: any bytes as messages between nodes. Build and run:
//   cmake --preset fuzz && cmake --build build/fuzz --target wire_fuzzer
//   mkdir NEW_INPUTS
//   build/fuzz/fuzz/wire_fuzzer -max_total_time=120 NEW_INPUTS fuzz/corpus/wire
// Put what it finds into fuzz/corpus/wire: the unit tests replay that folder.
#include <cstddef>
#include <cstdint>
#include <span>

#include "support/remote/any_message.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  karez::test::read_any_message(std::as_bytes(std::span(data, size)));
  return 0;
}
