// What the fuzzer of grammars does with any bytes; the tests replay its corpus.
//
// Thread: one caller at a time; the vocabulary is made at the first call.
#pragma once

#include <string_view>

namespace karez::test {

// The bytes as a grammar of an answer, of which a few tokens are generated. Aborts if a refusal has
// no message or is no fault of the client; whatever libllama does not survive ends the process.
// False: it was refused.
bool read_any_grammar(std::string_view bytes);

}  // namespace karez::test
