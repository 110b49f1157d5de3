// What the fuzzer of requests does with any bytes; the tests replay its corpus.
//
// Thread: pure.
#pragma once

#include <string_view>

namespace karez::test {

// The bytes as the body of each kind of request. Aborts if an answer is not
// what the rest of the server may rely on: a 400 with a message, or a request that an engine can
// take.
void read_any_request(std::string_view bytes);

}  // namespace karez::test
