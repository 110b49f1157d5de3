// libFuzzer target: any bytes as a model file. Build and run:
//   cmake --preset fuzz && cmake --build --preset fuzz --target gguf_fuzzer
//   mkdir NEW_INPUTS
//   build/fuzz/fuzz/gguf_fuzzer -max_total_time=120 NEW_INPUTS fuzz/corpus/gguf
// Put what it finds into fuzz/corpus/gguf: the unit tests replay that folder.
#include <cstddef>
#include <cstdint>
#include <span>

#include "support/read_any_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  karez::test::read_any_file(std::as_bytes(std::span(data, size)));
  return 0;
}
