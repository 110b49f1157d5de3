// libFuzzer target: any bytes as the body of a request. Build and run:
//   cmake --preset fuzz && cmake --build --preset fuzz --target request_fuzzer
//   mkdir NEW_INPUTS
//   build/fuzz/fuzz/request_fuzzer -max_total_time=120 -dict=fuzz/request.dict NEW_INPUTS \
//     fuzz/corpus/request
// Put what it finds into fuzz/corpus/request: the unit tests replay that folder.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "support/server/read_any_request.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  karez::test::read_any_request({reinterpret_cast<const char*>(data), size});
  return 0;
}
