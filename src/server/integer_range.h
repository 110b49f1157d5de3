// The integers of a range as a GBNF expression: "minimum" and "maximum" of a JSON schema.
//
// Integers have up to 16 digits, as in the grammar's own "integer": that stays inside double.
// Thread: a function without state.
#pragma once

#include <cstdint>
#include <string>

namespace karez {

constexpr std::int64_t kLargestGrammarInteger = 9'999'999'999'999'999;

// Alternatives that match exactly the integers from low to high, written without leading zeros,
// plus signs and "-0". Requires: low <= high, both within +-kLargestGrammarInteger.
std::string integer_range_grammar(std::int64_t low, std::int64_t high);

}  // namespace karez
