#include "support/server/read_any_schema.h"

#include <cstddef>

#include "base/check.h"
#include "sampling/grammar_cost.h"
#include "server/json_input.h"
#include "server/json_schema_to_grammar.h"
#include "support/read_any_grammar.h"

namespace karez::test {

void read_any_schema(std::string_view bytes) {
  const auto schema = parse_json_object(bytes);
  if (!schema) {
    return;
  }
  const auto grammar = json_schema_to_grammar(*schema, "schema");
  if (!grammar) {
    KAREZ_CHECK(grammar.error().http_status == 400, "the client is at fault");
    KAREZ_CHECK(!grammar.error().message.empty(), "it is told why");
    return;
  }
  KAREZ_CHECK(grammar->starts_with("root ::= "), "root is the first rule");
  KAREZ_CHECK(grammar->size() < (std::size_t{1} << 20), "grammars are bounded");
  if (const auto affordable = check_grammar_cost(*grammar); !affordable) {
    const std::string& message = affordable.error().message();
    KAREZ_CHECK(message.find("wrong at") == std::string::npos, message);
    return;
  }
  KAREZ_CHECK(read_any_grammar(*grammar), *grammar);
}

}  // namespace karez::test
