#include "route/two_step.h"

#include <algorithm>
#include <array>
#include <utility>

#include "route/node_table.h"

namespace karez {
namespace {

constexpr const char* kTransfer = "kv_transfer_params";
// Longer beginnings would tell more prompts apart, and put fewer together that share most of it.
constexpr std::size_t kPrefixBytes = 2048;

// What one token needs nothing of, or what a whole answer must not have.
constexpr std::array<const char*, 8> kOnlyForDecoding = {
    "stream_options", "min_tokens",   "n_predict", "best_of",
    "logprobs",       "top_logprobs", "echo",      "n"};

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void append(std::string& text, const Json& part) {
  if (part.is_string()) {
    text.append(part.get_ref<const std::string&>(), 0, kPrefixBytes);
  } else if (part.is_array() || part.is_object()) {
    for (const Json& inner : part) {
      if (text.size() >= kPrefixBytes) {
        return;
      }
      append(text, inner);
      text += '\n';
    }
  } else {
    text += part.dump();
  }
}

// Messages are objects.
bool is_list_of_prompts(const Json& prompt) {
  return prompt.is_array() && prompt.size() > 1 &&
         (prompt.front().is_string() || prompt.front().is_array());
}

void make_prefill(Json& body) {
  for (const char* field : kOnlyForDecoding) {
    body.erase(field);
  }
  body["max_tokens"] = 1;
  if (body.contains("max_completion_tokens")) {
    body["max_completion_tokens"] = 1;
  }
  body["stream"] = false;
  body[kTransfer] = {{"do_remote_decode", true}, {"do_remote_prefill", false}};
}

}  // namespace

ApiResult<RoutedRequest> read_routed_request(std::string body, std::string_view authorization) {
  auto json = parse_json_object(body);
  if (!json) {
    return api_fail(std::move(json.error()));
  }
  RoutedRequest request;
  if (const auto found = json->find(kTransfer); found == json->end()) {
    request.body = std::move(body);
  } else if (found->is_null()) {
    json->erase(found);
    request.body = dump(*json);
  } else {
    return api_fail(ApiError::bad_field(
        kTransfer,
        "kv_transfer_params is set by the router; send it to a node to set it yourself"));
  }
  std::string beginning;
  bool is_one_prompt = true;
  for (const char* field : {"messages", "prompt"}) {
    if (const auto part = json->find(field); part != json->end() && !part->is_null()) {
      append(beginning, *part);
      is_one_prompt = is_one_prompt && !is_list_of_prompts(*part);
    }
  }
  beginning.resize(std::min(beginning.size(), kPrefixBytes));
  request.prefix_hash = hash_text(beginning, hash_text(authorization));
  if (is_one_prompt) {
    make_prefill(*json);
    request.prefill_body = dump(*json);
  }
  return request;
}

std::string decode_body(const RoutedRequest& request, const Json& transfer) {
  if (transfer.is_null()) {
    return request.body;
  }
  // The body is an object: its last member comes before the last brace.
  const std::size_t end = request.body.rfind('}');
  const std::size_t last = request.body.find_last_not_of(" \t\r\n", end - 1);
  std::string text = request.body.substr(0, end);
  text += request.body[last] == '{' ? "" : ",";
  text += Json(kTransfer).dump() + ":" + dump(transfer) + "}";
  return text;
}

Json transfer_of_answer(std::string_view answer) {
  auto json = parse_json_object(answer);
  if (!json) {
    return nullptr;
  }
  const auto found = json->find(kTransfer);
  return found != json->end() && found->is_object() && !found->empty() ? std::move(*found)
                                                                       : Json(nullptr);
}

bool could_not_keep_kv(int http_status, std::string_view answer) {
  if (http_status != 503) {
    return false;
  }
  const auto json = parse_json_object(answer);
  if (!json) {
    return false;
  }
  const auto error = json->find("error");
  if (error == json->end() || !error->is_object()) {
    return false;
  }
  const auto code = error->find("code");
  return code != error->end() && *code == kTransferFailedCode;
}

}  // namespace karez
