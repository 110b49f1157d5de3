// The routes that only turn text into tokens or tell about the model: JSON in, JSON out.
//
// Thread: pure.
#pragma once

#include <string>

#include "engine/engine_client.h"
#include "server/api_error.h"
#include "server/generation_request.h"
#include "server/text_codec.h"

namespace karez {

// More than kMaxContexts times the model's context is refused (context_length_exceeded): tokens
// that are given, and texts that surely have so many.
constexpr int kMaxContexts = 4;

ApiResult<std::string> answer_tokenize(const std::string& body, const TextCodec& codec,
                                       const ModelInfo& model);
ApiResult<std::string> answer_detokenize(const std::string& body, const TextCodec& codec,
                                         const ModelInfo& model);
ApiResult<std::string> answer_apply_template(const std::string& body, const TextCodec& codec,
                                             const ModelInfo& model);
std::string answer_models(const ModelInfo& model, int vocab_size);
std::string answer_model(const ModelInfo& model, int vocab_size);
std::string answer_props(const ModelInfo& model);
// Of an engine that takes requests. With stored prefixes also whether they are in use.
std::string answer_health(const EngineStats& stats);
std::string answer_stats(const EngineStats& stats, const ModelInfo& model);
// {"request", "num_tokens", "layers": ["3317...", ...]}: a digit for each 16 tokens, KvMap::Where.
// No map: {"layers": []}.
std::string answer_kv_map(const KvMap* map);

}  // namespace karez
