// What `karez inspect` says about a model file, as text and as JSON.
//
// Numbers come from the model's configuration and engine/kv_capacity; nothing is measured.
// Thread: values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "kv/kv_types.h"
#include "model/model_config.h"

namespace karez {

class GgufFile;

// Sequences of this many tokens that fit together.
struct FittingSequences {
  std::int64_t context_tokens = 0;
  std::int64_t count = 0;
};

struct FitRow {
  std::int64_t kv_fast_bytes = 0;  // the cap
  KvType kv_type = KvType::kBf16;
  std::int64_t longest_sequence_tokens = 0;  // at most what the model was trained for
  std::vector<FittingSequences> sequences;   // contexts up to what the model was trained for
};

struct KvCostRow {
  KvType kv_type = KvType::kBf16;
  std::int64_t bytes_per_token = 0;  // full-attention layers
  std::int64_t slot_bytes = 0;
  std::int64_t full_context_bytes = 0;  // one sequence of context_length tokens
};

struct InspectReport {
  std::string path;
  std::int64_t file_bytes = 0;
  std::uint32_t gguf_version = 0;
  std::string tokenizer;  // tokenizer.ggml.model
  ModelConfig config;
  std::vector<KvCostRow> kv;
  std::vector<FitRow> fits;
};

// Prompts are counted as read in steps of 512 tokens, the default of the other commands.
// Fails: as check_tokenizer_metadata() and read_model_config().
Expected<InspectReport> inspect_model(const GgufFile& file,
                                      const std::vector<std::int64_t>& caps_bytes);

std::string to_text(const InspectReport& report);
std::string to_json(const InspectReport& report);

}  // namespace karez
