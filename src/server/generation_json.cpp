#include "server/generation_json.h"

#include <algorithm>
#include <utility>

#include "server/transfer_fields.h"

namespace karez {
namespace {

// JSON has no infinity; clients of vLLM know this number for "impossible".
constexpr float kLowestLogprob = -9999.0F;

std::int64_t count_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; });
}

float finite(float logprob) { return std::max(logprob, kLowestLogprob); }

Json chat_token(const TokenLogprob& token) {
  Json bytes = Json::array();
  for (const char c : token.bytes) {
    bytes.push_back(static_cast<unsigned char>(c));
  }
  return {{"token", token.bytes}, {"logprob", finite(token.logprob)}, {"bytes", bytes}};
}

}  // namespace

std::string dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string sse(const std::string& json) { return "data: " + json + "\n\n"; }

std::string_view to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "abort";
    case FinishReason::kError:
      break;
  }
  return "error";
}

GenerationJson::GenerationJson(const GenerationRequest& request, const ModelInfo& model,
                               std::string id, std::int64_t created_unix_seconds)
    : request_(request),
      model_name_(model.name),
      id_(std::move(id)),
      created_unix_seconds_(created_unix_seconds),
      choices_(static_cast<std::size_t>(request.total_choices())) {}

Json GenerationJson::head(std::string_view object) const {
  return {{"id", id_},
          {"object", object},
          {"created", created_unix_seconds_},
          {"model", model_name_},
          {"system_fingerprint", "karez"}};
}

std::string GenerationJson::chunk(int index, Json choice) const {
  const bool chat = request_.kind == ApiKind::kChat;
  Json json = head(chat ? "chat.completion.chunk" : "text_completion");
  Json entry = {{"index", index}};
  entry.update(choice);
  json["choices"] = Json::array({entry});
  if (request_.include_usage) {
    json["usage"] = nullptr;
  }
  const Choice& state = choices_[static_cast<std::size_t>(index)];
  if (state.last.finished && !state.finish_reason.empty() && !entry["finish_reason"].is_null()) {
    json["timings"] = timings(state.last);
    if (state.last.kv_transfer) {
      json["kv_transfer_params"] = transfer_json(*state.last.kv_transfer);
    }
  }
  return sse(dump(json));
}

Json GenerationJson::logprobs_of(Choice& choice, const std::vector<GeneratedToken>& tokens) const {
  if (request_.kind == ApiKind::kChat) {
    Json content = Json::array();
    for (const GeneratedToken& token : tokens) {
      Json entry = chat_token(token.chosen);
      Json top = Json::array();
      for (const TokenLogprob& alternative : token.alternatives) {
        top.push_back(chat_token(alternative));
      }
      entry["top_logprobs"] = std::move(top);
      content.push_back(std::move(entry));
    }
    return {{"content", std::move(content)}, {"refusal", nullptr}};
  }
  Json json = {{"tokens", Json::array()},
               {"token_logprobs", Json::array()},
               {"top_logprobs", Json::array()},
               {"text_offset", Json::array()}};
  for (const GeneratedToken& token : tokens) {
    json["tokens"].push_back(token.chosen.bytes);
    json["token_logprobs"].push_back(finite(token.chosen.logprob));
    Json top = Json::object();
    for (const TokenLogprob& alternative : token.alternatives) {
      top[alternative.bytes] = finite(alternative.logprob);
    }
    json["top_logprobs"].push_back(std::move(top));
    json["text_offset"].push_back(choice.offset);
    choice.offset += count_characters(token.chosen.bytes);
  }
  return json;
}

std::string GenerationJson::take(int prompt, const GenerationEvent& event) {
  const int index = prompt * request_.num_choices + event.choice;
  Choice& choice = choices_[static_cast<std::size_t>(index)];
  const bool chat = request_.kind == ApiKind::kChat;
  std::string out;
  std::string text = event.text;
  if (!choice.started) {
    choice.started = true;
    if (!request_.echo_texts.empty()) {
      text = request_.echo_texts[static_cast<std::size_t>(prompt)] + text;
    }
    if (chat && request_.stream) {
      out += chunk(index, {{"delta", {{"role", "assistant"}, {"content", ""}}},
                           {"logprobs", nullptr},
                           {"finish_reason", nullptr}});
    }
  }
  Json logprobs = nullptr;
  if (request_.logprobs && !event.tokens.empty()) {
    logprobs = logprobs_of(choice, event.tokens);
  }
  if (request_.stream) {
    if (!text.empty() || !logprobs.is_null()) {
      Json body = chat ? Json{{"delta", {{"content", text}}}} : Json{{"text", text}};
      body["logprobs"] = std::move(logprobs);
      body["finish_reason"] = nullptr;
      out += chunk(index, std::move(body));
    }
  } else {
    choice.text += text;
    if (choice.logprobs.is_null()) {
      choice.logprobs = std::move(logprobs);
    } else if (!logprobs.is_null()) {
      for (const auto& [key, values] : logprobs.items()) {
        if (values.is_array()) {
          choice.logprobs[key].insert(choice.logprobs[key].end(), values.begin(), values.end());
        }
      }
    }
  }
  choice.last = event;
  choice.last.text.clear();
  choice.last.tokens.clear();
  if (event.finished && choice.finish_reason.empty()) {
    ++num_finished_;
    choice.finish_reason = to_string(*event.finished);
    if (request_.stream) {
      Json body = chat ? Json{{"delta", Json::object()}} : Json{{"text", ""}};
      body["logprobs"] = nullptr;
      body["finish_reason"] = choice.finish_reason;
      out += chunk(index, std::move(body));
    }
  }
  return out;
}

// Sums over prompts. The choices of one prompt share its KV, and each of their events has the
// figures of all of them so far: of these the latest count.
Json GenerationJson::usage() const {
  int prompt_tokens = 0;
  int cached_tokens = 0;
  int generated_tokens = 0;
  std::int64_t blocks_read = 0;
  std::int64_t blocks_loaded = 0;
  std::int64_t draft_tokens = 0;
  std::int64_t accepted_draft_tokens = 0;
  MissedMass missed;
  const auto num_choices = static_cast<std::size_t>(request_.num_choices);
  for (std::size_t first = 0; first < choices_.size(); first += num_choices) {
    GenerationEvent of_prompt;
    for (std::size_t i = first; i < first + num_choices; ++i) {
      const GenerationEvent& last = choices_[i].last;
      generated_tokens += last.generated_tokens;
      of_prompt.kv_blocks_read = std::max(of_prompt.kv_blocks_read, last.kv_blocks_read);
      of_prompt.kv_blocks_loaded = std::max(of_prompt.kv_blocks_loaded, last.kv_blocks_loaded);
      of_prompt.draft_tokens = std::max(of_prompt.draft_tokens, last.draft_tokens);
      of_prompt.accepted_draft_tokens =
          std::max(of_prompt.accepted_draft_tokens, last.accepted_draft_tokens);
      if (last.kv_missed.num_lists >= of_prompt.kv_missed.num_lists) {
        of_prompt.kv_missed = last.kv_missed;
      }
    }
    prompt_tokens += choices_[first].last.prompt_tokens;
    cached_tokens += choices_[first].last.cached_tokens;
    blocks_read += of_prompt.kv_blocks_read;
    blocks_loaded += of_prompt.kv_blocks_loaded;
    draft_tokens += of_prompt.draft_tokens;
    accepted_draft_tokens += of_prompt.accepted_draft_tokens;
    missed.add(of_prompt.kv_missed);
  }
  Json usage = {{"prompt_tokens", prompt_tokens},
                {"completion_tokens", generated_tokens},
                {"total_tokens", prompt_tokens + generated_tokens},
                {"prompt_tokens_details", {{"cached_tokens", cached_tokens}}}};
  if (draft_tokens > 0) {  // somebody drafts
    usage["completion_tokens_details"] = {
        {"accepted_prediction_tokens", accepted_draft_tokens},
        {"rejected_prediction_tokens", draft_tokens - accepted_draft_tokens}};
  }
  if (blocks_read > 0) {  // there is a tier below the fast one
    usage["kv_tier_details"] = {{"blocks_read", blocks_read}, {"blocks_loaded", blocks_loaded}};
    if (missed.num_lists > 0) {
      usage["kv_tier_details"].update({{"blocks_skipped", missed.blocks_skipped},
                                       {"missed_mass_mean", missed.mean()},
                                       {"missed_mass_worst", missed.worst}});
    }
  }
  return usage;
}

Json GenerationJson::timings(const GenerationEvent& event) const {
  const auto rate = [](double count, double seconds) { return seconds > 0 ? count / seconds : 0; };
  const int computed = event.prompt_tokens - event.cached_tokens;
  return {{"cache_n", event.cached_tokens},
          {"prompt_n", computed},
          {"prompt_ms", event.timings.prefill_seconds * 1000},
          {"prompt_per_second", rate(computed, event.timings.prefill_seconds)},
          {"predicted_n", event.generated_tokens},
          {"predicted_ms", event.timings.decode_seconds * 1000},
          // The first token comes from the prefill.
          {"predicted_per_second",
           rate(std::max(event.generated_tokens - 1, 0), event.timings.decode_seconds)},
          {"queue_ms", event.timings.queue_seconds * 1000}};
}

std::string GenerationJson::stream_end() const {
  std::string out;
  if (request_.include_usage) {
    const bool chat = request_.kind == ApiKind::kChat;
    Json json = head(chat ? "chat.completion.chunk" : "text_completion");
    json["choices"] = Json::array();
    json["usage"] = usage();
    out = sse(dump(json));
  }
  return out + "data: [DONE]\n\n";
}

std::string GenerationJson::whole() const {
  const bool chat = request_.kind == ApiKind::kChat;
  Json json = head(chat ? "chat.completion" : "text_completion");
  Json list = Json::array();
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    const Choice& choice = choices_[i];
    Json entry = {{"index", i}};
    if (chat) {
      entry["message"] = {{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}};
    } else {
      entry["text"] = choice.text;
    }
    entry["logprobs"] = choice.logprobs;
    entry["finish_reason"] = choice.finish_reason;
    list.push_back(std::move(entry));
  }
  json["choices"] = std::move(list);
  json["usage"] = usage();
  json["timings"] = timings(choices_.front().last);
  if (const auto& produced = choices_.front().last.kv_transfer) {
    json["kv_transfer_params"] = transfer_json(*produced);
  }
  return dump(json);
}

}  // namespace karez
