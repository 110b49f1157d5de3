// Speculative decoding as a user asks for it, and the drafter that comes of it.
//
// Thread: values, and functions without state.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "engine/block_loader.h"
#include "kv/kv_cache_manager.h"
#include "model/model_runner.h"
#include "spec/ngram_proposer.h"
#include "spec/speculation.h"

namespace karez {

class Tokenizer;

enum class SpecType { kNone, kNgram, kDraftModel, kSelf };

std::string_view to_string(SpecType type);
// Fails: kInvalidArgument with the list of types.
Expected<SpecType> parse_spec_type(std::string_view name);

struct SpecOptions {
  SpecType type = SpecType::kNone;
  SpeculationOptions lengths;  // with probes somebody drafts for kNone too
  NgramOptions ngram;
  std::string draft_model_path;
  std::optional<std::int64_t> draft_kv_bytes;  // none: as many tokens as the target's fast tier
  // kSelf where the target is dense: tokens that a draft attends to in each layer and KV head.
  int draft_token_budget = 512;
};

// What the runner has to be able to: drafts of a dense target are sparse (SpecType::kSelf).
SparseOptions with_sparse_drafts(const SparseOptions& sparse, const SpecOptions& options);

// Whom the drafts are for. All borrowed, and needed as long as the drafter lives.
struct SpecTarget {
  const Tokenizer* tokenizer = nullptr;
  ModelRunner* runner = nullptr;
  KVCacheManager* kv = nullptr;
  const KeyIndex* key_index = nullptr;  // null: no sparse attention
  BlockLoader* loader = nullptr;        // null: no home tier
  KvType kv_type = KvType::kBf16;
  int num_threads = 1;
  int context_tokens = 0;
  int max_batch_tokens = 512;
  bool repack_weights = true;
};

// Null for kNone.
// Fails: as load_model() and KVCacheManager::create(), with the flag's name; kInvalidArgument for a
// draft model with another vocabulary.
Expected<std::unique_ptr<Speculation>> make_speculation(
    const SpecOptions& options, const SpecTarget& target,
    const std::function<bool(double)>& progress = {});

}  // namespace karez
