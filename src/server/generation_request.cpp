#include "server/generation_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "server/field_reader.h"
#include "server/transfer_fields.h"

namespace karez {
namespace {

constexpr std::size_t kMaxPrompts = 64;
constexpr std::size_t kMaxMessages = 100'000;
constexpr int kMaxChoices = 64;
constexpr int kMaxTopLogprobs = 20;
constexpr int kMaxCompletionLogprobs = 5;

// What a client would believe to be in effect although it is not.
void refuse_unsupported(FieldReader& reader, ApiKind kind) {
  const auto refuse = [&reader](std::string_view field, std::string_view what) {
    reader.fail(field, fmt::format("{}: {} are not supported", field, what));
  };
  for (const std::string_view field : {"tools", "functions"}) {
    const Json* tools = reader.find(field);
    if (tools != nullptr && !(tools->is_array() && tools->empty())) {
      refuse(field, "tool calls");
    }
  }
  if (const Json* suffix = reader.find("suffix");
      kind == ApiKind::kCompletion && suffix != nullptr && *suffix != "") {
    refuse("suffix", "texts after the answer");
  }
  if (reader.find("prompt_logprobs") != nullptr) {
    refuse("prompt_logprobs", "log probabilities of the prompt");
  }
}

// A role that the model's template knows; "developer" is OpenAI's newer word for "system".
std::optional<std::string> known_role(FieldReader& reader) {
  const auto role = reader.string("role");
  if (role == "developer") {
    return "system";
  }
  if (role == "system" || role == "user" || role == "assistant") {
    return role;
  }
  reader.wrong("role", role ? fmt::format("\"{}\"", *role) : "absent",
               "system, developer, user and assistant");
  return std::nullopt;
}

std::string read_content(FieldReader& reader) {
  const Json* content = reader.find("content");
  if (content != nullptr && content->is_string()) {
    return content->get<std::string>();
  }
  if (content == nullptr || !content->is_array()) {
    reader.wrong("content", content == nullptr ? "null" : describe(*content),
                 "strings and arrays of text parts");
    return {};
  }
  std::string text;
  for (std::size_t i = 0; i < content->size(); ++i) {
    const std::string name = fmt::format("content[{}]", i);
    const Json& part = (*content)[i];
    if (!part.is_object()) {
      reader.wrong(name, describe(part), "objects with a type");
      return {};
    }
    FieldReader part_reader(part, reader.path_of(name), reader.problem());
    const auto type = part_reader.string("type");
    if (type != "text") {
      part_reader.wrong("type", type ? fmt::format("\"{}\"", *type) : "absent",
                        "text: this server takes no images, sounds or files");
      return {};
    }
    const auto part_text = part_reader.string("text");
    if (!part_text) {
      part_reader.wrong("text", "null", "strings");
      return {};
    }
    text += *part_text;
  }
  return text;
}

// Says no before the work when a text cannot fit: it has at least so many tokens.
bool fits_surely_not(std::size_t bytes, const ModelInfo& model, const TextCodec& codec) {
  const auto context = static_cast<std::size_t>(model.context_tokens);
  return bytes / std::max<std::size_t>(codec.max_piece_bytes(), 1) >= context;
}

ApiError too_long(std::string_view field, std::string_view seen, const ModelInfo& model) {
  ApiError error = ApiError::bad_field(
      field, fmt::format("{} is {} tokens long, allowed are up to {}: the context of {} tokens "
                         "holds prompt and answer",
                         field, seen, model.context_tokens - 1, model.context_tokens));
  error.code = "context_length_exceeded";
  return error;
}

struct Prompt {
  std::string field;
  std::vector<TokenId> tokens;
  std::string text;  // for echo
};

ApiResult<Prompt> checked(Expected<std::vector<TokenId>> tokens, std::string text,
                          const std::string& field, const ModelInfo& model) {
  if (!tokens) {
    ApiError error = ApiError::from_status(tokens.error());
    error.param = error.http_status == 400 ? field : std::string();
    return api_fail(std::move(error));
  }
  if (tokens->empty()) {
    return api_fail(
        ApiError::bad_field(field, fmt::format("{} is empty, allowed are prompts of at least one "
                                               "token",
                                               field)));
  }
  if (tokens->size() >= static_cast<std::size_t>(model.context_tokens)) {
    return api_fail(too_long(field, std::to_string(tokens->size()), model));
  }
  return Prompt{field, std::move(*tokens), std::move(text)};
}

ApiResult<Prompt> text_prompt(const std::string& text, const std::string& field,
                              const ModelInfo& model, const TextCodec& codec) {
  if (fits_surely_not(text.size(), model, codec)) {
    return api_fail(too_long(field, fmt::format("at least {}", model.context_tokens), model));
  }
  return checked(codec.tokenize(text, /*add_special=*/true, /*parse_special=*/true), text, field,
                 model);
}

ApiResult<Prompt> token_prompt(const Json& array, const std::string& field, bool with_text,
                               const ModelInfo& model, const TextCodec& codec) {
  auto tokens = parse_token_array(array, field, codec.vocab_size());
  if (!tokens) {
    return api_fail(std::move(tokens.error()));
  }
  auto prompt = checked(std::move(*tokens), {}, field, model);
  if (prompt && with_text) {
    prompt->text = text_of(codec, prompt->tokens, true);
  }
  return prompt;
}

ApiResult<std::vector<Prompt>> completion_prompts(const Json& body, bool with_text,
                                                  const ModelInfo& model, const TextCodec& codec) {
  const auto found = body.find("prompt");
  if (found == body.end() || found->is_null()) {
    return api_fail(ApiError::bad_field(
        "prompt",
        "prompt is missing, needed is a string, an array of tokens, or an array of these"));
  }
  const Json& prompt = *found;
  const bool is_array = prompt.is_array();
  const bool is_tokens = is_array && !prompt.empty() && prompt.front().is_number();
  if ((!prompt.is_string() && !is_array) || (is_array && prompt.empty()) ||
      (is_array && !is_tokens && prompt.size() > kMaxPrompts)) {
    return api_fail(ApiError::bad_field(
        "prompt", fmt::format("prompt is {}, allowed are a string, an array of tokens, and arrays "
                              "of 1 to {} of these",
                              describe(prompt), kMaxPrompts)));
  }
  std::vector<Prompt> prompts;
  const std::size_t count = is_array && !is_tokens ? prompt.size() : 1;
  for (std::size_t i = 0; i < count; ++i) {
    const bool listed = is_array && !is_tokens;
    const Json& one = listed ? prompt[i] : prompt;
    const std::string field = listed ? fmt::format("prompt[{}]", i) : "prompt";
    if (!one.is_string() && !one.is_array()) {
      return api_fail(ApiError::bad_field(
          field,
          fmt::format("{} is {}, allowed are strings and arrays of tokens", field, describe(one))));
    }
    auto parsed = one.is_string() ? text_prompt(one.get<std::string>(), field, model, codec)
                                  : token_prompt(one, field, with_text, model, codec);
    if (!parsed) {
      return api_fail(std::move(parsed.error()));
    }
    prompts.push_back(std::move(*parsed));
  }
  return prompts;
}

ApiResult<std::vector<Prompt>> chat_prompts(const Json& body, const ModelInfo& model,
                                            const TextCodec& codec) {
  auto turns = parse_messages(body);
  if (!turns) {
    return api_fail(std::move(turns.error()));
  }
  std::size_t bytes = 0;
  for (const ChatTurn& turn : *turns) {
    bytes += turn.content.size();
  }
  if (fits_surely_not(bytes, model, codec) ||
      turns->size() >= static_cast<std::size_t>(model.context_tokens)) {
    return api_fail(too_long("messages", fmt::format("at least {}", model.context_tokens), model));
  }
  auto prompt = checked(codec.tokenize_chat(*turns, true), {}, "messages", model);
  if (!prompt) {
    return api_fail(std::move(prompt.error()));
  }
  std::vector<Prompt> prompts;
  prompts.push_back(std::move(*prompt));
  return prompts;
}

void read_logprobs(FieldReader& reader, ApiKind kind, GenerationRequest& result, Request& request) {
  if (kind == ApiKind::kCompletion) {
    if (const auto count = reader.integer("logprobs", 0, kMaxCompletionLogprobs)) {
      result.logprobs = true;
      request.num_logprobs = static_cast<int>(*count);
    }
    return;
  }
  result.logprobs = reader.boolean("logprobs").value_or(false);
  const auto top = reader.integer("top_logprobs", 0, kMaxTopLogprobs);
  if (top && !result.logprobs) {
    reader.fail("top_logprobs", "top_logprobs needs logprobs to be true");
  }
  if (result.logprobs) {
    request.num_logprobs = static_cast<int>(top.value_or(0));
  }
}

void read_stream(FieldReader& reader, GenerationRequest& result) {
  result.stream = reader.boolean("stream").value_or(false);
  const Json* options = reader.object("stream_options");
  if (options == nullptr) {
    return;
  }
  if (!result.stream) {
    reader.fail("stream_options", "stream_options needs stream to be true");
  }
  FieldReader inner(*options, "stream_options", reader.problem());
  result.include_usage = inner.boolean("include_usage").value_or(false);
}

}  // namespace

std::string GenerationRequest::own_name(std::string_view field, std::size_t prompt) const {
  if (field == "prompt") {
    return prompt_fields[prompt];
  }
  const auto found = field_names.find(field);
  return found == field_names.end() ? std::string(field) : found->second;
}

ApiResult<std::vector<TokenId>> parse_token_array(const Json& array, const std::string& field,
                                                  int vocab_size) {
  std::vector<TokenId> tokens;
  tokens.reserve(array.size());
  for (std::size_t i = 0; i < array.size(); ++i) {
    const Json& value = array[i];
    if (!value.is_number_integer() || value.get<std::int64_t>() < 0 ||
        value.get<std::int64_t>() >= vocab_size) {
      const std::string name = fmt::format("{}[{}]", field, i);
      return api_fail(
          ApiError::bad_field(name, fmt::format("{} is {}, allowed are token ids from 0 to {}",
                                                name, describe(value), vocab_size - 1)));
    }
    tokens.push_back(value.get<TokenId>());
  }
  return tokens;
}

ApiResult<std::vector<ChatTurn>> parse_messages(const Json& body) {
  FieldProblem problem;
  FieldReader reader(body, "", problem);
  const Json* messages = reader.array("messages");
  if (!problem.error &&
      (messages == nullptr || messages->empty() || messages->size() > kMaxMessages)) {
    reader.wrong("messages", messages == nullptr ? "missing" : describe(*messages),
                 fmt::format("arrays of 1 to {} messages", kMaxMessages));
  }
  std::vector<ChatTurn> turns;
  for (std::size_t i = 0; !problem.error && i < messages->size(); ++i) {
    const Json& message = (*messages)[i];
    if (!message.is_object()) {
      reader.wrong(fmt::format("messages[{}]", i), describe(message), "objects");
      break;
    }
    FieldReader inner(message, fmt::format("messages[{}]", i), problem);
    if (const auto role = known_role(inner)) {
      turns.push_back({*role, read_content(inner)});
    }
  }
  if (problem.error) {
    return api_fail(std::move(*problem.error));
  }
  return turns;
}

ApiResult<GenerationRequest> parse_generation_request(ApiKind kind, const Json& body,
                                                      const std::string& salt,
                                                      const ModelInfo& model,
                                                      const TextCodec& codec) {
  FieldProblem problem;
  FieldReader reader(body, "", problem);
  GenerationRequest result;
  result.kind = kind;
  Request request;
  refuse_unsupported(reader, kind);
  reader.string("model");
  read_stream(reader, result);
  read_logprobs(reader, kind, result, request);
  const bool echo = kind == ApiKind::kCompletion && reader.boolean("echo").value_or(false);
  if (echo && result.logprobs) {
    reader.fail("echo", "echo and logprobs cannot be used together");
  }
  result.num_choices = static_cast<int>(reader.integer("n", 1, kMaxChoices).value_or(1));
  if (const auto best_of = reader.integer("best_of", 1, kMaxChoices);
      best_of && *best_of != result.num_choices) {
    reader.wrong("best_of", std::to_string(*best_of), "the value of n");
  }
  request.num_choices = result.num_choices;
  read_sampling_fields(reader, codec, request);
  result.field_names = names_in_use(reader);
  if (kind == ApiKind::kCompletion) {
    result.field_names.emplace("top_logprobs", "logprobs");
  }
  read_transfer_fields(reader, model.kv_role, model.allowed_peers, request);
  if (problem.error) {
    return api_fail(std::move(*problem.error));
  }
  auto prompts = kind == ApiKind::kChat ? chat_prompts(body, model, codec)
                                        : completion_prompts(body, echo, model, codec);
  if (!prompts) {
    return api_fail(std::move(prompts.error()));
  }
  if (static_cast<int>(prompts->size()) * result.num_choices > kMaxChoices) {
    return api_fail(ApiError::bad_field(
        "n", fmt::format("n is {} for {} prompts, allowed are up to {} answers in all",
                         result.num_choices, prompts->size(), kMaxChoices)));
  }
  if (request.kv_transfer && prompts->size() > 1) {
    return api_fail(ApiError::bad_field(
        "prompt", fmt::format("prompt is an array of {}, allowed is one with kv_transfer_params",
                              prompts->size())));
  }
  request.cache_salt = salt + request.cache_salt;
  for (Prompt& prompt : *prompts) {
    Request one = request;
    const int room = model.context_tokens - static_cast<int>(prompt.tokens.size());
    one.max_tokens = one.max_tokens < 0 ? room : std::min(one.max_tokens, room);
    one.min_tokens = std::min(one.min_tokens, one.max_tokens);
    one.prompt = std::move(prompt.tokens);
    result.prompts.push_back(std::move(one));
    result.prompt_fields.push_back(std::move(prompt.field));
    if (echo) {
      result.echo_texts.push_back(std::move(prompt.text));
    }
  }
  return result;
}

}  // namespace karez
