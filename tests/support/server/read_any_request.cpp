#include "support/server/read_any_request.h"

#include "base/check.h"
#include "sampling/grammar_cost.h"
#include "server/generation_request.h"
#include "server/text_routes.h"
#include "support/server/fake_codec.h"

namespace karez::test {
namespace {

const ModelInfo& model() {
  static const ModelInfo info = {
      .name = "m", .context_tokens = 4096, .max_num_seqs = 8, .kv_role = KvRole::kBoth};
  return info;
}

template <typename T>
void check_refusal(const ApiResult<T>& result) {
  if (!result) {
    KAREZ_CHECK(result.error().http_status == 400, "the client is at fault");
    KAREZ_CHECK(!result.error().message.empty(), "it is told why");
  }
}

void check_request(const Request& request) {
  KAREZ_CHECK(!request.prompt.empty(), "a prompt is not empty");
  KAREZ_CHECK(request.max_tokens >= 1 && request.min_tokens <= request.max_tokens,
              "an answer has room for a token");
  KAREZ_CHECK(
      static_cast<int>(request.prompt.size()) + request.max_tokens <= model().context_tokens,
      "prompt and answer fit the context");
  // How many can run at once the engine says.
  KAREZ_CHECK(request.num_choices >= 1 && request.num_choices <= 64, "choices are few");
  KAREZ_CHECK(request.sampling.stop.size() <= 4, "there are few stop texts");
  KAREZ_CHECK(request.sampling.validate().has_value(), "the sampling parameters are valid");
  KAREZ_CHECK(request.cache_salt.starts_with("salt"), "the key's salt comes first");
  if (const auto& transfer = request.kv_transfer;
      transfer && transfer->role == KvTransfer::Role::kConsume) {
    KAREZ_CHECK(transfer->remote_port >= 1 && transfer->remote_port <= 65'535 &&
                    !transfer->remote_host.empty() && transfer->remote_request_id.size() == 32,
                "it says where the KV is");
  }
  if (!request.sampling.grammar.empty()) {
    KAREZ_CHECK(request.sampling.grammar.size() <= 512 * 1024, "grammars are bounded");
    // It may be too expensive, but that is for the sampler to say.
    (void)check_grammar_cost(request.sampling.grammar);
  }
}

}  // namespace

void read_any_request(std::string_view bytes) {
  const FakeCodec codec;
  const std::string body(bytes);
  check_refusal(answer_tokenize(body, codec, model()));
  check_refusal(answer_detokenize(body, codec, model()));
  check_refusal(answer_apply_template(body, codec, model()));
  const auto json = parse_json_object(bytes);
  check_refusal(json);
  if (!json) {
    return;
  }
  for (const ApiKind kind : {ApiKind::kChat, ApiKind::kCompletion}) {
    const auto parsed = parse_generation_request(kind, *json, "salt", model(), codec);
    check_refusal(parsed);
    if (parsed) {
      for (const Request& request : parsed->prompts) {
        check_request(request);
      }
    }
  }
}

}  // namespace karez::test
