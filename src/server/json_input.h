// Request bodies from JSON text, with everything refused that two readers could read differently or
// that costs more than it should.
//
// Refused: nesting deeper than max_depth, more than max_values values (a value costs many times
// its text), a key twice in an object, NUL in a text, text that is not UTF-8, numbers beyond
// double. Thread: pure.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string_view>

#include "server/api_error.h"

namespace karez {

// Objects keep the order of their keys: a JSON schema's properties have one. Reading a field is a
// linear search.
using Json = nlohmann::ordered_json;

struct JsonLimits {
  std::size_t max_depth = 64;
  std::size_t max_values = 2'000'000;
};

// The body's object. Fails: 400 that names the field or the byte.
ApiResult<Json> parse_json_object(std::string_view text, const JsonLimits& limits = {});

}  // namespace karez
