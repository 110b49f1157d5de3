// A JSON schema as a GBNF grammar whose sentences are JSON texts valid under the schema.
//
// Supported: type (one or several), properties with required and optional ones in their order,
// additionalProperties, items, minItems, maxItems, minLength, maxLength, format (date, time,
// date-time, uuid), enum, const, anyOf, oneOf (as anyOf), allOf of one, $ref into the same schema
// (recursive ones too), true. Annotations (title, description, default, ...) are skipped.
// Anything else is refused by name: a keyword that is silently not applied gives answers that the
// client believes to be checked.
// Where JSON Schema would allow more members than `properties` names, only those named are allowed
// unless additionalProperties says otherwise.
// Thread: pure. Errors name the keyword's path below `path`.
#pragma once

#include <string>
#include <string_view>

#include "server/api_error.h"
#include "server/json_input.h"

namespace karez {

// path: how the client knows the schema, "response_format.json_schema.schema".
ApiResult<std::string> json_schema_to_grammar(const Json& schema, std::string_view path);

// Any JSON object.
std::string json_object_grammar();

}  // namespace karez
