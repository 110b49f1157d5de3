// Small models with random weights, of every architecture and shape that Karez runs.
//
// The same spec gives the same file. Weights are scaled so that activations stay
// near 1 and attention is neither flat nor one-hot. Karez and libllama both load the files.
// Thread: no state.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "support/gguf_writer.h"

namespace karez::test {

struct RandomModelSpec {
  std::string architecture = "llama";  // llama, qwen2, qwen3, gemma3
  int num_layers = 2;
  int hidden_size = 64;
  int intermediate_size = 128;
  int num_heads = 4;
  int num_kv_heads = 2;
  int head_dim = 16;     // qwen2: hidden_size / num_heads
  int vocab_size = 512;  // at least 260: control tokens and bytes
  int context_length = 4096;
  bool tied_embeddings = true;

  // A ggml type name: f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q4_K, q6_K ... Rows must be
  // multiples of its block (32; 256 for the _K types).
  std::string weight_type = "f32";
  std::string embedding_type;  // empty: weight_type

  bool qkv_bias = false;  // always on for qwen2

  int sliding_window = 0;                   // gemma3; 0: no key
  int sliding_window_period = 0;            // gemma3; 0: no key, which means 6
  std::vector<bool> sliding_window_layers;  // gemma3; instead of a period
  float final_logit_softcap = 0;            // gemma3; 0: no key

  float rope_freq_base = 10000;
  std::string rope_scaling;       // empty: no keys; none, linear, yarn
  float rope_scaling_factor = 4;  // with rope_scaling
  int rope_original_context = 1024;
  bool rope_factors = false;  // llama: the tensor rope_freqs.weight, as Llama 3 has it

  std::uint64_t seed = 1;
};

// The whole model; tests may change keys before they build or write it.
// Throws std::invalid_argument for a spec that cannot be.
GgufWriter random_model(const RandomModelSpec& spec);

}  // namespace karez::test
