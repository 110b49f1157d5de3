// What a GGUF file says about the shape of its model, checked and with defaults filled in.
//
// Plain numbers; no weights and no library types. read_model_config() is the one place where
// metadata keys are read.
// Thread: a value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "kv/kv_cache_spec.h"

namespace karez {

class GgufFile;

enum class RopeScaling { kNone, kLinear, kYarn };

// Parameters of ggml's rotary embedding, as libllama derives them from the same metadata.
struct RopeConfig {
  int dimensions = 0;              // rotated coordinates of a head
  bool neox = false;               // pairs (i, i + n/2) instead of (2i, 2i + 1)
  float freq_base = 10000;         // of full-attention layers
  float freq_scale = 1;            // 1 / factor
  float freq_base_window = 10000;  // of sliding-window layers (Gemma 3)
  float freq_scale_window = 1;
  RopeScaling scaling = RopeScaling::kNone;
  int original_context = 0;  // YaRN
  float ext_factor = 0;      // YaRN: 1
  float attn_factor = 1;
  float beta_fast = 32;
  float beta_slow = 1;
};

struct ModelConfig {
  std::string architecture;  // "llama", "qwen2", "qwen3", "gemma3"
  std::string name;          // general.name, may be empty
  std::string file_type;     // of most weights by bytes: "q4_1"
  std::int64_t num_parameters = 0;
  std::int64_t weight_bytes = 0;

  int num_layers = 0;
  int hidden_size = 0;
  int intermediate_size = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int vocab_size = 0;
  int context_length = 0;  // that the model was trained for
  float rms_norm_eps = 1e-5F;
  float attention_scale = 0;          // multiplies q k
  float attention_logit_softcap = 0;  // 0: off
  float final_logit_softcap = 0;      // 0: off
  float embedding_scale = 1;
  std::vector<int> layer_windows;  // [num_layers], 0: full attention
  RopeConfig rope;

  KVCacheSpec kv_cache_spec(KvType type) const;
};

// The architectures that read_model_config() accepts, for messages and help texts.
std::vector<std::string> supported_architectures();

// Fails: kUnimplemented for another architecture (named, with the list of those supported) or an
// unsupported variant (mixture of experts, different head counts per layer); kCorruption for a
// missing or impossible value (the key, the value and the allowed range are named).
Expected<ModelConfig> read_model_config(const GgufFile& file);
// Fails: as GgufFile::open() and the above.
Expected<ModelConfig> read_model_config(const std::string& path);

}  // namespace karez
