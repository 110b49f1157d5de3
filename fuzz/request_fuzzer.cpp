// Any bytes as the body of a request, and as a JSON schema. No input may crash, hang or take much
// memory; what is accepted must be a request that the engine can take.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "server/generation_request.h"
#include "server/json_schema_to_grammar.h"
#include "server/text_routes.h"
#include "support/server/fake_codec.h"

namespace {

void require(bool condition) {
  if (!condition) {
    std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const karez::ModelInfo model = {.name = "m", .context_tokens = 4096, .max_num_seqs = 8};
  const karez::FakeCodec codec;
  auto json = karez::parse_json_object(text);
  if (!json) {
    require(json.error().http_status == 400);
    return 0;
  }
  for (const auto kind : {karez::ApiKind::kChat, karez::ApiKind::kCompletion}) {
    const auto parsed = karez::parse_generation_request(kind, *json, "salt", model, codec);
    if (!parsed) {
      require(parsed.error().http_status == 400 && !parsed.error().message.empty());
      continue;
    }
    for (const karez::Request& request : parsed->prompts) {
      require(!request.prompt.empty());
      require(static_cast<int>(request.prompt.size()) + request.max_tokens <= model.context_tokens);
      require(request.max_tokens >= 1 && request.min_tokens <= request.max_tokens);
      require(request.num_choices >= 1 && request.sampling.stop.size() <= 4);
    }
  }
  const auto grammar = karez::json_schema_to_grammar(*json, "schema");
  require(!grammar || (grammar->starts_with("root ::= ") && grammar->size() < (1U << 20)));
  return 0;
}
