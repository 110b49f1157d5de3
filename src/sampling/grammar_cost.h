// What a GBNF grammar may cost libllama, found before libllama reads it.
//
// libllama takes any grammar at its word: deep nesting overflows its stack, "a"{3,1} and long texts
// repeated fill the memory, rules that may all be empty give exponentially many ways to begin, and
// repetitions in a row as many ways to share out a token.
// A grammar can come from a client, so that each of these has a bound here. Syntax errors that do
// not matter for the bounds are left to libllama.
// Thread: pure.
#pragma once

#include <cstddef>
#include <string_view>

#include "base/status.h"

namespace karez {

struct GrammarLimits {
  std::size_t nesting = 100;          // parentheses within each other
  std::size_t rules = 16'384;         // groups count
  std::size_t elements = 1'000'000;   // characters, classes and references, repetitions unrolled
  std::size_t reference_depth = 500;  // rules that begin with a rule that begins with a rule ...
  std::size_t beginnings = 4096;      // ways in which a rule can begin
  std::size_t repetition = 2000;      // m and n of {m,n}; libllama's own limit
  // Characters, classes and rules in a row that vary in how often they stand there and may all take
  // the same character: "[a-z]* [a-z]+ [a-z]?" are 3. Rules count with what they are when they can
  // be empty, or are a single character; longer ones that libllama has to share out are not found.
  std::size_t shared = 8;
};

// Fails: kInvalidArgument naming the limit, and the value seen where it is known.
Expected<void> check_grammar_cost(std::string_view gbnf, const GrammarLimits& limits = {});

}  // namespace karez
