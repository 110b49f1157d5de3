// libFuzzer target: any bytes as the grammar of an answer. Build and run:
//   cmake --preset fuzz && cmake --build --preset fuzz --target grammar_fuzzer
//   mkdir NEW_INPUTS
//   build/fuzz/fuzz/grammar_fuzzer -max_total_time=120 NEW_INPUTS fuzz/corpus/grammar
// Put what it finds into fuzz/corpus/grammar: the unit tests replay that folder.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "support/read_any_grammar.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  karez::test::read_any_grammar({reinterpret_cast<const char*>(data), size});
  return 0;
}
