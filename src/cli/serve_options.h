// The flags of `karez serve`. Names are llama.cpp's or vLLM's where they have them.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "cli/compress_flags.h"
#include "cli/http_flags.h"
#include "cli/role_flags.h"
#include "cli/sparse_flags.h"
#include "cli/spec_flags.h"
#include "cli/tier_flags.h"
#include "kv/kv_types.h"
#include "sched/scheduler_options.h"
#include "server/server.h"

namespace CLI {
class App;
}

namespace karez {

// As typed.
struct ServeFlags {
  std::string model_path;
  std::string alias;  // empty: the file's name without its ending
  std::string chat_template;
  std::int64_t context_tokens = 0;  // 0: the model's
  std::int64_t threads = 0;
  bool has_threads = false;
  std::string kv_fast_bytes;
  std::string cache_type_k;  // empty: as cache_type_v; both: bf16
  std::string cache_type_v;
  bool no_repack = false;
  SparseFlags sparse;
  TierFlags tiers;
  RoleFlags role;
  SpecFlags spec;
  CompressFlags compress;

  std::int64_t max_num_seqs = 64;
  std::int64_t max_num_batched_tokens = 512;
  std::int64_t max_queue = 1024;
  std::string scheduling_policy = "fcfs";
  bool no_prefix_cache = false;
  bool shared_prefix_cache = false;

  HttpFlags http;
  std::string log_jsonl;
};

// Checked, without the model's knowledge.
struct ServeOptions {
  ServeFlags flags;
  int threads = 1;
  KvType kv_type = KvType::kBf16;
  SparseOptions sparse;
  HomeOptions home;
  StoreOptions store;
  RoleOptions role;
  SpecOptions spec;
  OnMiss on_miss;
  CompressionOptions compression;
  std::optional<std::int64_t> kv_fast_bytes;
  SchedulerOptions scheduler;
  ServerOptions server;
  std::chrono::seconds shutdown_timeout{0};
};

void add_serve_flags(CLI::App& command, ServeFlags& flags);

// Fails: kInvalidArgument naming the flag, its value and what is allowed; kNotFound, kIoError for
// --api-key-file.
Expected<ServeOptions> check_serve_flags(ServeFlags flags);

}  // namespace karez
