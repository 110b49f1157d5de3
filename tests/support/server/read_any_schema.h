// What the fuzzer of JSON schemas does with any bytes; the tests replay its corpus.
//
// Thread: as read_any_grammar().
#pragma once

#include <string_view>

namespace karez::test {

// The bytes as the schema of an answer, and its grammar as libllama reads it. Aborts if a refusal
// is not a 400 with a message, or if libllama refuses a grammar that is within the limits.
void read_any_schema(std::string_view bytes);

}  // namespace karez::test
