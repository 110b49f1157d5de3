// The bodies of vLLM's two steps: what a producer is asked, and what a consumer is told.
//
// JSON of requests is touched here only: the few fields of the hand-over are set, everything else
// stays as the client wrote it.
// Thread: pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/api_error.h"
#include "server/json_input.h"

namespace karez {

// A client's request for text.
struct RoutedRequest {
  std::string body;  // as it was sent, if it says nothing of KV
  // The first step: the same, for one token, whole, with the KV kept for a consumer. Empty: there
  // are several prompts, and a producer's KV is that of one.
  std::string prefill_body;
  // Of the beginning of the prompt; equal beginnings of one client have one hash.
  std::uint64_t prefix_hash = 0;
};

// authorization: of the client; prompts of different keys share no cache on a node either.
// Fails: 400 as parse_json_object(), and for a body that says itself where KV is.
ApiResult<RoutedRequest> read_routed_request(std::string body, std::string_view authorization);

// The second step. transfer: as the producer gave it; null: the consumer prefills itself.
std::string decode_body(const RoutedRequest& request, const Json& transfer);
// kv_transfer_params of a producer's answer. Null: it has none, or the answer is no JSON object.
Json transfer_of_answer(std::string_view answer);
// Of a producer's answer that is not 200: the prompt is right, its KV could not be kept for a
// consumer.
bool could_not_keep_kv(int http_status, std::string_view answer);

}  // namespace karez
