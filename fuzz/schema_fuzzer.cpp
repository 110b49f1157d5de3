// libFuzzer target: any bytes as a JSON schema of an answer. Build and run:
//   cmake --preset fuzz && cmake --build --preset fuzz --target schema_fuzzer
//   mkdir NEW_INPUTS
//   build/fuzz/fuzz/schema_fuzzer -max_total_time=120 -dict=fuzz/schema.dict NEW_INPUTS \
//     fuzz/corpus/schema
// Put what it finds into fuzz/corpus/schema: the unit tests replay that folder.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "support/server/read_any_schema.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  karez::test::read_any_schema({reinterpret_cast<const char*>(data), size});
  return 0;
}
