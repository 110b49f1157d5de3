#include "server/sampling_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string>

#include "server/json_schema_to_grammar.h"

namespace karez {
namespace {

constexpr std::size_t kMaxStops = 4;
constexpr std::size_t kMaxStopBytes = 4096;
constexpr std::size_t kMaxStopTokens = 1024;
constexpr std::size_t kMaxGrammarBytes = 256 * 1024;
constexpr std::size_t kMaxSaltBytes = 256;
constexpr std::size_t kMaxLogitBiases = 1024;

// The first of two names that the request uses.
std::string_view either(const FieldReader& reader, std::string_view first,
                        std::string_view second) {
  return reader.find(first) == nullptr && reader.find(second) != nullptr ? second : first;
}

std::string_view max_tokens_name(const FieldReader& reader) {
  return either(reader, either(reader, "max_completion_tokens", "max_tokens"), "n_predict");
}

std::string_view repeat_penalty_name(const FieldReader& reader) {
  return either(reader, "repeat_penalty", "repetition_penalty");
}

// Where the grammar comes from, if there is one.
std::string_view grammar_name(const FieldReader& reader) {
  const Json* own = reader.find("grammar");
  if (own != nullptr && *own != "") {
    return "grammar";
  }
  return reader.find("json_schema") != nullptr ? "json_schema" : "response_format";
}

// -1 and 2^32 - 1 are "random" as in llama.cpp. Others keep their low 32 bits, and are not random.
void read_seed(FieldReader& reader, SamplingParams& sampling) {
  constexpr std::uint64_t kRandom = kRandomSeed;
  const Json* value = reader.find("seed");
  if (value == nullptr) {
    return;
  }
  std::uint64_t seed = 0;
  if (value->is_number_unsigned()) {
    seed = value->get<std::uint64_t>();
  } else if (const auto integer = reader.integer("seed", INT64_MIN, INT64_MAX)) {
    seed = *integer == -1 ? kRandom : static_cast<std::uint64_t>(*integer);
  } else {
    return;
  }
  const std::uint64_t low = seed & 0xFFFF'FFFFU;
  sampling.seed = static_cast<std::uint32_t>(low == kRandom && seed != kRandom ? low - 1 : low);
}

void read_numbers(FieldReader& reader, Request& request) {
  SamplingParams& sampling = request.sampling;
  const auto set = [&reader](float& target, std::string_view field, double low, double high) {
    if (const auto value = reader.number(field, low, high)) {
      target = static_cast<float>(*value);
    }
  };
  set(sampling.temperature, "temperature", 0, 100);
  set(sampling.top_p, "top_p", 0, 1);
  set(sampling.min_p, "min_p", 0, 1);
  set(sampling.typical_p, "typical_p", 0, 1);
  set(sampling.repeat_penalty, repeat_penalty_name(reader), 0.01, 100);
  set(sampling.presence_penalty, "presence_penalty", -2, 2);
  set(sampling.frequency_penalty, "frequency_penalty", -2, 2);
  if (const auto top_k = reader.integer("top_k", -1, INT32_MAX)) {
    sampling.top_k = static_cast<int>(std::max<std::int64_t>(*top_k, 0));
  }
  if (const auto last_n = reader.integer("repeat_last_n", -1, INT32_MAX)) {
    sampling.repeat_last_n = static_cast<int>(*last_n);
  }
  read_seed(reader, sampling);
}

void read_lengths(FieldReader& reader, Request& request) {
  const std::string_view field = max_tokens_name(reader);
  if (const auto most = reader.integer(field, -1, INT64_MAX)) {
    if (*most == 0) {
      reader.wrong(field, "0", "integers from 1, and -1 (until the context is full)");
    }
    request.max_tokens = static_cast<int>(std::min<std::int64_t>(*most, INT32_MAX));
  }
  if (const auto least = reader.integer("min_tokens", 0, INT32_MAX)) {
    request.min_tokens = static_cast<int>(*least);
    if (request.max_tokens >= 0 && request.min_tokens > request.max_tokens) {
      reader.wrong("min_tokens", std::to_string(*least),
                   fmt::format("integers up to {} = {}", field, request.max_tokens));
    }
  }
}

void read_stop(FieldReader& reader, Request& request) {
  const Json* stop = reader.find("stop");
  if (stop == nullptr) {
    return;
  }
  const bool one = stop->is_string();
  if (!one && (!stop->is_array() || stop->size() > kMaxStops)) {
    reader.wrong("stop", describe(*stop), "a string and arrays of up to 4 strings");
    return;
  }
  for (std::size_t i = 0; i < (one ? 1 : stop->size()); ++i) {
    const Json& value = one ? *stop : (*stop)[i];
    const std::string name = one ? "stop" : fmt::format("stop[{}]", i);
    if (!value.is_string()) {
      reader.wrong(name, describe(value), "strings");
      return;
    }
    const auto text = value.get<std::string>();
    if (text.empty() || text.size() > kMaxStopBytes) {
      reader.wrong(name, fmt::format("a string of {} bytes", text.size()),
                   fmt::format("strings of 1 to {} bytes", kMaxStopBytes));
      return;
    }
    request.sampling.stop.push_back(text);
  }
}

void read_stop_tokens(FieldReader& reader, const TextCodec& codec, Request& request) {
  const Json* tokens = reader.array("stop_token_ids");
  if (tokens == nullptr) {
    return;
  }
  if (tokens->size() > kMaxStopTokens) {
    reader.wrong("stop_token_ids", describe(*tokens),
                 fmt::format("arrays of up to {} tokens", kMaxStopTokens));
    return;
  }
  for (std::size_t i = 0; i < tokens->size(); ++i) {
    const Json& value = (*tokens)[i];
    if (!value.is_number_integer() || value.get<std::int64_t>() < 0 ||
        value.get<std::int64_t>() >= codec.vocab_size()) {
      reader.wrong(fmt::format("stop_token_ids[{}]", i), describe(value),
                   fmt::format("token ids from 0 to {}", codec.vocab_size() - 1));
      return;
    }
    request.stop_token_ids.push_back(value.get<TokenId>());
  }
}

void read_logit_bias(FieldReader& reader, const TextCodec& codec, Request& request) {
  const Json* biases = reader.object("logit_bias");
  if (biases == nullptr) {
    return;
  }
  if (biases->size() > kMaxLogitBiases) {
    reader.wrong("logit_bias", fmt::format("an object of {}", biases->size()),
                 fmt::format("up to {} tokens", kMaxLogitBiases));
    return;
  }
  for (const auto& [key, value] : biases->items()) {
    TokenId token = -1;
    const auto read = std::from_chars(key.data(), key.data() + key.size(), token);
    const std::string name = fmt::format("logit_bias.{}", key);
    // One spelling for each token, so that none has two biases.
    const bool is_plain = !key.starts_with('-') && (key == "0" || !key.starts_with('0'));
    if (!is_plain || read.ec != std::errc() || read.ptr != key.data() + key.size() || token < 0 ||
        token >= codec.vocab_size()) {
      reader.wrong(name, "no token id",
                   fmt::format("token ids from 0 to {} as keys", codec.vocab_size() - 1));
      return;
    }
    const double bias = value.is_number() ? value.get<double>() : -1000;
    if (!(bias >= -100 && bias <= 100)) {
      reader.wrong(name, describe(value), "numbers from -100 to 100");
      return;
    }
    request.logit_bias.emplace_back(token, static_cast<float>(bias));
  }
}

void use_schema(FieldReader& reader, const Json& schema, std::string_view path, Request& request) {
  auto grammar = json_schema_to_grammar(schema, path);
  if (!grammar) {
    if (!reader.failed()) {
      reader.problem().error = std::move(grammar.error());
    }
    return;
  }
  request.sampling.grammar = std::move(*grammar);
}

void read_response_format(FieldReader& reader, Request& request) {
  const Json* format = reader.object("response_format");
  if (format == nullptr) {
    return;
  }
  FieldReader inner(*format, "response_format", reader.problem());
  const std::string type = inner.string("type").value_or("");
  if (type == "text" || inner.failed()) {
    return;
  }
  if (type == "json_object") {
    // llama.cpp takes a schema here as well.
    if (const Json* schema = inner.find("schema")) {
      use_schema(reader, *schema, "response_format.schema", request);
    } else {
      request.sampling.grammar = json_object_grammar();
    }
    return;
  }
  if (type != "json_schema") {
    inner.wrong("type", type.empty() ? "absent" : fmt::format("\"{}\"", type),
                "text, json_object and json_schema");
    return;
  }
  const Json* wrapper = inner.object("json_schema");
  const Json* schema = nullptr;
  if (wrapper != nullptr) {
    schema = FieldReader(*wrapper, "response_format.json_schema", reader.problem()).find("schema");
  }
  if (schema == nullptr) {
    inner.wrong(wrapper == nullptr ? "json_schema" : "json_schema.schema", "absent", "schemas");
    return;
  }
  use_schema(reader, *schema, "response_format.json_schema.schema", request);
}

void read_grammar(FieldReader& reader, const TextCodec& codec, Request& request) {
  read_response_format(reader, request);
  if (const Json* schema = reader.find("json_schema")) {
    if (!request.sampling.grammar.empty()) {
      reader.fail("json_schema", "json_schema and response_format cannot be used together");
    }
    use_schema(reader, *schema, "json_schema", request);
  }
  const auto grammar = reader.string("grammar");
  if (grammar && !grammar->empty()) {
    if (!request.sampling.grammar.empty()) {
      reader.fail("grammar", "grammar cannot be used together with a JSON schema");
    }
    if (grammar->size() > kMaxGrammarBytes) {
      reader.wrong("grammar", fmt::format("a string of {} bytes", grammar->size()),
                   fmt::format("grammars of up to {} bytes", kMaxGrammarBytes));
    }
    request.sampling.grammar = *grammar;
  }
  if (request.sampling.grammar.empty() || reader.failed()) {
    return;
  }
  if (const auto checked = codec.check_grammar(request.sampling.grammar); !checked) {
    reader.fail(grammar_name(reader), checked.error().message());
  }
}

// true, false, or an object, which asks for it unless it says otherwise.
void read_compression(FieldReader& reader, Request& request) {
  constexpr std::string_view kField = "kv_compression";
  const Json* value = reader.find(kField);
  if (value == nullptr) {
    return;
  }
  KvCompressionRequest& asked = request.kv_compression;
  if (value->is_boolean()) {
    asked.enabled = value->get<bool>();
    return;
  }
  if (!value->is_object()) {
    reader.wrong(kField, describe(*value), "true, false and objects with keep and window");
    return;
  }
  FieldReader inner(*value, reader.path_of(kField), reader.problem());
  for (const auto& [key, unused] : value->items()) {
    if (key != "enabled" && key != "keep" && key != "window") {
      inner.wrong(key, "not a field", "enabled, keep and window");
    }
  }
  asked.enabled = inner.boolean("enabled").value_or(true);
  if (const Json* keep = inner.find("keep")) {
    asked.keep = keep->is_number() ? keep->get<double>() : 0;
    if (!(*asked.keep > 0 && *asked.keep < 1)) {
      inner.wrong("keep", describe(*keep), "numbers above 0 and below 1");
    }
  }
  constexpr int kUnit = KvCompressionRequest::kWindowUnit;
  constexpr int kLeast = KvCompressionRequest::kLeastWindow;
  constexpr int kMost = KvCompressionRequest::kMostWindow;
  if (const auto window = inner.integer("window", kLeast, kMost)) {
    asked.window_tokens = static_cast<int>(*window);
    if (*window % kUnit != 0) {
      inner.wrong("window", fmt::format("the number {}", *window),
                  fmt::format("multiples of {} from {} to {}", kUnit, kLeast, kMost));
    }
  }
}

}  // namespace

void read_sampling_fields(FieldReader& reader, const TextCodec& codec, Request& request) {
  read_numbers(reader, request);
  read_lengths(reader, request);
  read_stop(reader, request);
  read_stop_tokens(reader, codec, request);
  read_logit_bias(reader, codec, request);
  request.ignore_eos = reader.boolean("ignore_eos").value_or(false);
  request.use_prefix_cache = reader.boolean("cache_prompt").value_or(true);
  request.priority = static_cast<int>(reader.integer("priority", INT32_MIN, INT32_MAX).value_or(0));
  request.cache_salt = reader.string("cache_salt").value_or("");
  if (request.cache_salt.size() > kMaxSaltBytes) {
    reader.wrong("cache_salt", fmt::format("a string of {} bytes", request.cache_salt.size()),
                 fmt::format("strings of up to {} bytes", kMaxSaltBytes));
  }
  read_grammar(reader, codec, request);
  read_compression(reader, request);
}

FieldNames names_in_use(const FieldReader& reader) {
  return {{"max_tokens", std::string(max_tokens_name(reader))},
          {"repeat_penalty", std::string(repeat_penalty_name(reader))},
          {"grammar", std::string(grammar_name(reader))}};
}

}  // namespace karez
