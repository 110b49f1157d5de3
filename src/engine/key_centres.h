// The mean key of every layer and KV head of a model: what the key index subtracts before it codes
// a key (KeyIndex::create()).
//
// A shift that is common to all keys of a head adds the same to all scores of a row, which softmax
// ignores; without it the few bits of a code go to what tells keys apart. The centre has to be one
// for all sequences, because they share blocks: so it is a constant of the model, measured on a
// text.
//
// Thread: the runner's caller.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "attention/sparse_rows.h"
#include "base/status.h"
#include "base/token.h"
#include "kv/kv_types.h"
#include "model/model_runner.h"
#include "model/tokenizer.h"

namespace karez {

// Reads the tokens with the runner, whose KV type is kv_type, in a store of its own.
// Returns: f32 [num_layers][num_kv_heads][head_dim], zeros for layers with a sliding window. The
// first block is left out: its keys are unlike the rest and always attended to.
// Fails: kInvalidArgument for fewer than 2 blocks of tokens; as KVCacheManager::create() and
// ModelRunner::forward().
Expected<std::vector<float>> measure_key_centres(ModelRunner& runner, KvType kv_type,
                                                 std::span<const TokenId> tokens, int step_tokens);

// English, code, tables, numbers: a bit of everything.
std::string_view key_centre_text();

// More of a text changes nothing that can be measured, and a server waits for it at its start.
inline constexpr int kMaxKeyCentreTokens = 1024;

// Those of the built-in text. Empty (zeros) if the options have no use for centres, or the model's
// context is too short to measure any.
// Fails: as measure_key_centres() and Tokenizer::tokenize().
Expected<std::vector<float>> built_in_key_centres(ModelRunner& runner, const Tokenizer& tokenizer,
                                                  KvType kv_type, const SparseOptions& sparse,
                                                  int step_tokens);

}  // namespace karez
