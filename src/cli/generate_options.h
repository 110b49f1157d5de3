// The flags of `karez generate`. Names are llama.cpp's where it has them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "cli/compress_flags.h"
#include "cli/sparse_flags.h"
#include "cli/spec_flags.h"
#include "cli/tier_flags.h"
#include "kv/kv_types.h"
#include "sampling/sampling_params.h"

namespace CLI {
class App;
}

namespace karez {

// As typed. Defaults that depend on the model or the machine are filled in later.
struct GenerateFlags {
  std::string model_path;
  std::string prompt;
  std::string prompt_file;
  bool has_prompt = false;  // an empty -p is an empty prompt, not a missing one
  std::string system_prompt;
  std::string chat_template;  // empty: the model's
  bool raw = false;

  std::int64_t max_tokens = -1;
  bool ignore_eos = false;
  std::int64_t context_tokens = 0;  // 0: the model's
  std::int64_t threads = 0;         // 0: not given
  bool has_threads = false;
  std::int64_t chunk_tokens = 512;
  std::string kv_fast_bytes;  // empty: enough for the context
  std::string cache_type_k;   // empty: as cache_type_v; both: bf16
  std::string cache_type_v;
  bool no_repack = false;
  SparseFlags sparse;
  TierFlags tiers;
  SpecFlags spec;
  CompressFlags compress;

  SamplingParams sampling;
  std::int64_t seed = -1;
  std::string grammar_file;

  std::string json_file;
  bool verbose = false;
};

// Checked, without the model's knowledge.
struct GenerateOptions {
  GenerateFlags flags;
  int max_tokens = -1;
  int threads = 1;
  int chunk_tokens = 512;
  KvType kv_type = KvType::kBf16;
  SparseOptions sparse;
  HomeOptions home;
  SpecOptions spec;
  OnMiss on_miss;
  CompressionOptions compression;
  std::optional<std::int64_t> kv_fast_bytes;
};

void add_generate_flags(CLI::App& command, GenerateFlags& flags);

// Fails: kInvalidArgument naming the flag, its value and what is allowed; kNotFound, kIoError for
// --grammar-file.
Expected<GenerateOptions> check_generate_flags(GenerateFlags flags);

}  // namespace karez
