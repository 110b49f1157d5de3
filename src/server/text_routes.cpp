#include "server/text_routes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "sampling/utf8.h"
#include "server/field_reader.h"
#include "server/generation_json.h"

namespace karez {
namespace {

// A token's text, or its bytes where they are no text of their own.
std::string piece_json(const std::string& piece) {
  if (!first_invalid_utf8(piece)) {
    return dump(piece);
  }
  const std::span bytes(reinterpret_cast<const unsigned char*>(piece.data()), piece.size());
  return fmt::format("[{}]", fmt::join(bytes, ","));
}

// Written as text: a JSON value for each token takes a hundred times the memory of the token.
std::string token_list(const std::vector<TokenId>& tokens, const TextCodec& codec,
                       bool with_pieces) {
  if (!with_pieces) {
    return fmt::format("[{}]", fmt::join(tokens, ","));
  }
  std::string list = "[";
  for (const TokenId token : tokens) {
    fmt::format_to(std::back_inserter(list), R"({}{{"id":{},"piece":{}}})",
                   list.size() > 1 ? "," : "", token, piece_json(codec.piece(token, true)));
  }
  return list + "]";
}

std::size_t max_tokens_of(const ModelInfo& model) {
  return static_cast<std::size_t>(model.context_tokens) * kMaxContexts;
}

ApiError too_many_tokens(std::string_view field, std::string_view seen, const ModelInfo& model) {
  ApiError error = ApiError::bad_field(
      field, fmt::format("{} is {} tokens long, allowed are up to {}: {} times the context of {}",
                         field, seen, max_tokens_of(model), kMaxContexts, model.context_tokens));
  error.code = "context_length_exceeded";
  return error;
}

// Says no before the work.
ApiResult<void> check_length(std::size_t bytes, std::string_view field, const TextCodec& codec,
                             const ModelInfo& model) {
  const std::size_t max_tokens = max_tokens_of(model);
  if (bytes / std::max<std::size_t>(codec.max_piece_bytes(), 1) > max_tokens) {
    return api_fail(too_many_tokens(field, fmt::format("more than {}", max_tokens), model));
  }
  return {};
}

Json model_json(const ModelInfo& model, int vocab_size) {
  return {{"id", model.name},
          {"object", "model"},
          {"created", model.created_unix_seconds},
          {"owned_by", "karez"},
          {"max_model_len", model.context_tokens},
          {"meta", {{"n_ctx", model.context_tokens}, {"n_vocab", vocab_size}}}};
}

ApiResult<std::vector<TokenId>> tokens_of(Expected<std::vector<TokenId>> tokens,
                                          std::string_view field) {
  if (!tokens) {
    ApiError error = ApiError::from_status(tokens.error());
    error.param = field;
    return api_fail(std::move(error));
  }
  return std::move(*tokens);
}

ApiResult<std::vector<TokenId>> chat_tokens(const Json& body, const TextCodec& codec,
                                            const ModelInfo& model, bool generation_prompt) {
  auto turns = parse_messages(body);
  if (!turns) {
    return api_fail(std::move(turns.error()));
  }
  std::size_t bytes = 0;
  for (const ChatTurn& turn : *turns) {
    bytes += turn.content.size();
  }
  if (auto checked = check_length(bytes, "messages", codec, model); !checked) {
    return api_fail(std::move(checked.error()));
  }
  return tokens_of(codec.tokenize_chat(*turns, generation_prompt), "messages");
}

ApiResult<std::vector<TokenId>> text_tokens(const std::string& text, std::string_view field,
                                            const TextCodec& codec, const ModelInfo& model,
                                            bool add_special, bool parse_special) {
  if (auto checked = check_length(text.size(), field, codec, model); !checked) {
    return api_fail(std::move(checked.error()));
  }
  return tokens_of(codec.tokenize(text, add_special, parse_special), field);
}

}  // namespace

ApiResult<std::string> answer_tokenize(const std::string& body, const TextCodec& codec,
                                       const ModelInfo& model) {
  auto json = parse_json_object(body);
  if (!json) {
    return api_fail(std::move(json.error()));
  }
  FieldProblem problem;
  FieldReader reader(*json, "", problem);
  const bool add_special = reader.boolean("add_special").value_or(false);
  const bool parse_special = reader.boolean("parse_special").value_or(true);
  const bool with_pieces = reader.boolean("with_pieces").value_or(false);
  const bool generation_prompt = reader.boolean("add_generation_prompt").value_or(true);
  const bool is_chat = reader.find("messages") != nullptr;
  const std::string_view field =
      reader.find("content") == nullptr && reader.find("prompt") != nullptr ? "prompt" : "content";
  const auto content = reader.string(field);
  if (!problem.error && !is_chat && !content) {
    reader.wrong("content", "absent", "strings");
  }
  if (problem.error) {
    return api_fail(std::move(*problem.error));
  }
  auto tokens = is_chat ? chat_tokens(*json, codec, model, generation_prompt)
                        : text_tokens(*content, field, codec, model, add_special, parse_special);
  if (!tokens) {
    return api_fail(std::move(tokens.error()));
  }
  return fmt::format(R"({{"tokens":{},"count":{},"max_model_len":{}}})",
                     token_list(*tokens, codec, with_pieces), tokens->size(), model.context_tokens);
}

ApiResult<std::string> answer_detokenize(const std::string& body, const TextCodec& codec,
                                         const ModelInfo& model) {
  auto json = parse_json_object(body);
  if (!json) {
    return api_fail(std::move(json.error()));
  }
  FieldProblem problem;
  FieldReader reader(*json, "", problem);
  const Json* array = reader.array("tokens");
  if (!problem.error && array == nullptr) {
    reader.wrong("tokens", "absent", "arrays of tokens");
  }
  if (problem.error) {
    return api_fail(std::move(*problem.error));
  }
  if (array->size() > max_tokens_of(model)) {
    return api_fail(too_many_tokens("tokens", std::to_string(array->size()), model));
  }
  auto tokens = parse_token_array(*array, "tokens", codec.vocab_size());
  if (!tokens) {
    return api_fail(std::move(tokens.error()));
  }
  const std::string text = text_of(codec, *tokens, true);
  // "content" as llama-server names it, "prompt" as vLLM does.
  return dump({{"content", text}, {"prompt", text}});
}

ApiResult<std::string> answer_apply_template(const std::string& body, const TextCodec& codec,
                                             const ModelInfo& model) {
  auto json = parse_json_object(body);
  if (!json) {
    return api_fail(std::move(json.error()));
  }
  FieldProblem problem;
  FieldReader reader(*json, "", problem);
  const bool generation_prompt = reader.boolean("add_generation_prompt").value_or(true);
  if (problem.error) {
    return api_fail(std::move(*problem.error));
  }
  auto tokens = chat_tokens(*json, codec, model, generation_prompt);
  if (!tokens) {
    return api_fail(std::move(tokens.error()));
  }
  return dump({{"prompt", text_of(codec, *tokens, true)}});
}

std::string answer_models(const ModelInfo& model, int vocab_size) {
  return dump({{"object", "list"}, {"data", Json::array({model_json(model, vocab_size)})}});
}

std::string answer_model(const ModelInfo& model, int vocab_size) {
  return dump(model_json(model, vocab_size));
}

std::string answer_props(const ModelInfo& model) {
  const SamplingParams defaults;
  return dump({{"model_alias", model.name},
               {"n_ctx", model.context_tokens},
               {"total_slots", model.max_num_seqs},
               {"block_size", model.block_tokens},
               {"default_generation_settings",
                {{"n_ctx", model.context_tokens},
                 {"params",
                  {{"temperature", defaults.temperature},
                   {"top_k", defaults.top_k},
                   {"top_p", defaults.top_p},
                   {"min_p", defaults.min_p},
                   {"typical_p", defaults.typical_p},
                   {"repeat_penalty", defaults.repeat_penalty},
                   {"repeat_last_n", defaults.repeat_last_n},
                   {"presence_penalty", defaults.presence_penalty},
                   {"frequency_penalty", defaults.frequency_penalty}}}}}});
}

std::string answer_kv_map(const KvMap* map) {
  Json layers = Json::array();
  if (map == nullptr) {
    return dump({{"layers", layers}});
  }
  for (int layer = 0; layer < map->num_layers; ++layer) {
    std::string digits;
    for (int block = 0; block < map->num_blocks; ++block) {
      const auto cell =
          static_cast<std::size_t>(layer) * static_cast<std::size_t>(map->num_blocks) +
          static_cast<std::size_t>(block);
      digits += static_cast<char>('0' + map->cells[cell]);
    }
    layers.push_back(std::move(digits));
  }
  Json answer = {{"request", map->request}, {"num_tokens", map->num_tokens}, {"layers", layers}};
  if (map->compressed.num_before > 0) {
    answer["compressed"] = {{"first_block", map->compressed.first_entry},
                            {"blocks_before", map->compressed.num_before},
                            {"blocks_kept", map->compressed.num_kept},
                            {"archived_pages", map->compressed.num_archived_pages},
                            {"blocks_archived", map->compressed.num_archived_blocks}};
  }
  return dump(answer);
}

std::string answer_health(const EngineStats& stats) {
  Json answer = {{"status", "ok"}};
  if (stats.has_store) {
    answer["kv_store"] = {{"loads", stats.store.loads_stopped ? "stopped" : "ok"},
                          {"stores", stats.store.stores_stopped ? "stopped" : "ok"}};
  }
  return dump(answer);
}

std::string answer_stats(const EngineStats& stats, const ModelInfo& model) {
  const PrefetchStats::BySource fetched = stats.tiers.prefetch.total();
  return dump({{"model", model.name},
               {"requests_running", stats.requests_running},
               {"requests_waiting", stats.requests_waiting},
               {"max_num_seqs", model.max_num_seqs},
               {"slots_used", stats.slots_used},
               {"slots_idle", stats.slots_idle},
               {"slots_total", stats.slots_total},
               {"slot_bytes", stats.slot_bytes},
               {"prefix_cache_queries_tokens", stats.prefix_cache_queries_tokens},
               {"prefix_cache_hits_tokens", stats.prefix_cache_hits_tokens},
               {"preemptions", stats.preemptions},
               {"demotions", stats.demotions},
               {"has_home", stats.has_home},
               {"home_bytes_total", stats.tiers.home_bytes_total},
               {"home_bytes_used", stats.tiers.home_bytes_used},
               {"blocks_clean", stats.tiers.blocks_clean},
               {"blocks_needed", stats.tiers.blocks_needed},
               {"demand_misses", stats.tiers.demand_misses},
               {"home_bytes_read", stats.tiers.bytes_read},
               {"home_bytes_written", stats.tiers.bytes_written},
               {"stall_seconds", stats.tiers.stall_seconds},
               {"lookahead_predicted", fetched.predicted},
               {"lookahead_useful", fetched.useful},
               {"lookahead_late", fetched.late},
               {"lookahead_wasted", fetched.wasted},
               {"layers_read", stats.tiers.prefetch.layers_read},
               {"layers_ready", stats.tiers.prefetch.layers_ready},
               {"has_speculation", stats.has_speculation},
               {"draft_tokens", stats.speculation.draft_tokens},
               {"accepted_draft_tokens", stats.speculation.accepted_tokens},
               {"blocks_skipped", stats.missed.blocks_skipped},
               {"missed_mass_mean", stats.missed.mean()},
               {"missed_mass_worst", stats.missed.worst},
               {"compressed_windows", stats.compression.windows},
               {"compression_bytes_saved", stats.compression.bytes_saved},
               {"pairs_kept", stats.compression.pairs_kept},
               {"pairs_archived", stats.compression.pairs_archived},
               {"pairs_dropped", stats.compression.pairs_dropped},
               {"prompt_tokens", stats.prompt_tokens},
               {"generated_tokens", stats.generated_tokens},
               {"steps", stats.steps},
               {"step_seconds", stats.step_seconds},
               {"forward_seconds", stats.forward_seconds}});
}

}  // namespace karez
