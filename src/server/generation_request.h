// A parsed and tokenised ask for text: typed engine requests and how the answer is to be written.
//
// The last place that sees JSON on the way in. Field names, defaults and limits: docs/api.md.
// Thread: parsing is pure; it may take long for long prompts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/role_options.h"
#include "sched/request.h"
#include "server/api_error.h"
#include "server/json_input.h"
#include "server/sampling_fields.h"
#include "server/text_codec.h"

namespace karez {

// What the server knows of the loaded model.
struct ModelInfo {
  std::string name;        // as clients see it
  int context_tokens = 0;  // prompt and answer together
  int block_tokens = 16;   // of the prefix cache
  int max_num_seqs = 0;
  std::int64_t created_unix_seconds = 0;
  KvRole kv_role = KvRole::kNone;
  AllowedPeers allowed_peers{};  // of a consumer
};

enum class ApiKind { kChat, kCompletion };

struct GenerationRequest {
  ApiKind kind = ApiKind::kChat;
  std::vector<Request> prompts;            // one engine request for each
  std::vector<std::string> prompt_fields;  // of each prompt: "messages", "prompt", "prompt[1]"
  std::vector<std::string> echo_texts;     // of each prompt; empty: no echo
  FieldNames field_names;
  int num_choices = 1;  // per prompt
  bool stream = false;
  bool include_usage = false;
  bool logprobs = false;

  int total_choices() const { return static_cast<int>(prompts.size()) * num_choices; }
  // As the client has written what the engine calls `field`, in the request for prompts[prompt].
  std::string own_name(std::string_view field, std::size_t prompt) const;
};

// salt: of the client, so that it shares cached prompts only with itself; empty: with everyone.
ApiResult<GenerationRequest> parse_generation_request(ApiKind kind, const Json& body,
                                                      const std::string& salt,
                                                      const ModelInfo& model,
                                                      const TextCodec& codec);

// The field `messages`, checked; used by /apply-template and /tokenize too.
ApiResult<std::vector<ChatTurn>> parse_messages(const Json& body);

// The field `field` as an array of token ids of the vocabulary.
ApiResult<std::vector<TokenId>> parse_token_array(const Json& array, const std::string& field,
                                                  int vocab_size);

}  // namespace karez
