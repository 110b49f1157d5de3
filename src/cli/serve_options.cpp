#include "cli/serve_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <limits>
#include <string_view>
#include <utility>

#include "cli/flag_checks.h"
#include "cli/kv_type_flags.h"
#include "engine/default_threads.h"

namespace karez {

void add_serve_flags(CLI::App& command, ServeFlags& flags) {
  const auto text = [&](const std::string& name, std::string& value, const std::string& help,
                        const std::string& type, const std::string& group) {
    return command.add_option(name, value, help)->type_name(type)->group(group);
  };
  const auto number = [&](const std::string& name, std::int64_t& value, const std::string& help,
                          const std::string& group) {
    return command.add_option(name, value, help)
        ->capture_default_str()
        ->type_name("N")
        ->group(group);
  };
  const std::string model = "Model";
  text("-m,--model", flags.model_path, "GGUF model file", "FILE", model)->required();
  text("--alias", flags.alias, "The model's name for clients (default: the file's name)", "NAME",
       model);
  text("--chat-template", flags.chat_template, "Chat template instead of the model's", "NAME",
       model);
  number("-c,--ctx-size", flags.context_tokens,
         "Tokens of prompt and answer together; 0: what the model was trained for", model);
  command
      .add_option_function<std::int64_t>(
          "-t,--threads",
          [&](const std::int64_t& threads) {
            flags.threads = threads;
            flags.has_threads = true;
          },
          "Threads (default: physical cores)")
      ->type_name("N")
      ->group(model);
  text("--kv-fast-bytes", flags.kv_fast_bytes,
       "Hard cap of the KV cache, such as 512MiB (default: 8 full contexts, at most half of the "
       "memory)",
       "BYTES", model);
  text("--cache-type-k", flags.cache_type_k,
       "Type of stored keys (-ctk): f32 bf16 q8_0 (default: bf16)", "TYPE", model);
  text("--cache-type-v", flags.cache_type_v,
       "Type of stored values (-ctv), the same as that of keys", "TYPE", model);
  add_token_budget_flag(command, flags.sparse);
  add_selection_flags(command, flags.sparse);
  add_tier_flags(command, flags.tiers);
  add_role_flags(command, flags.role);
  add_store_flags(command, flags.tiers);
  add_spec_flags(command, flags.spec);
  add_compress_flags(command, flags.compress,
                     "Compress the KV of answers as they age, unless a request says otherwise");
  command
      .add_flag("--no-repack", flags.no_repack,
                "Keep the weights in the layout of the file: less memory, slower")
      ->group(model);

  const std::string scheduling = "Scheduling";
  number("--parallel,--max-num-seqs", flags.max_num_seqs, "Sequences that run at once (-np)",
         scheduling);
  number("--max-num-batched-tokens", flags.max_num_batched_tokens, "Tokens of one step",
         scheduling);
  number("--max-queue", flags.max_queue, "Requests that may wait; more get 503", scheduling);
  text("--scheduling-policy", flags.scheduling_policy,
       "fcfs, or priority: lower `priority` of a request first", "NAME", scheduling)
      ->capture_default_str();
  command
      .add_flag("--no-prefix-cache", flags.no_prefix_cache,
                "Compute every prompt anew: same answers, slower")
      ->group(scheduling);
  command
      .add_flag("--shared-prefix-cache", flags.shared_prefix_cache,
                "Requests of different API keys share cached prompts; their times tell each other "
                "what is cached")
      ->group(scheduling);

  const std::string http = "HTTP";
  add_http_flags(command, flags.http);
  text("--log-jsonl", flags.log_jsonl, "Append a JSON line for each request; - is standard output",
       "FILE", http);
  // Always on; accepted because llama-server needs it.
  command
      .add_flag_callback(
          "--metrics", [] {}, "GET /metrics is always there")
      ->group(http);
}

Expected<ServeOptions> check_serve_flags(ServeFlags flags) {
  constexpr std::int64_t kMaxInt = std::numeric_limits<int>::max();
  ServeOptions options;
  RangeCheck in_range;
  options.threads =
      flags.has_threads ? in_range("-t", flags.threads, 1, kMaxThreads) : default_num_threads();
  options.scheduler.max_num_seqs = in_range("--max-num-seqs (-np)", flags.max_num_seqs, 1, 65'536);
  options.scheduler.max_num_batched_tokens =
      in_range("--max-num-batched-tokens", flags.max_num_batched_tokens, 1, 65'536);
  in_range("--max-queue", flags.max_queue, 1, kMaxInt);
  if (!in_range.result()) {
    return fail(in_range.result().error());
  }
  if (flags.scheduling_policy == "priority") {
    options.scheduler.policy = SchedulingPolicy::kPriority;
  } else if (flags.scheduling_policy != "fcfs") {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("--scheduling-policy is {}, allowed are fcfs and priority",
                            flags.scheduling_policy));
  }
  auto kv_type = kv_type_of_flags(flags.cache_type_k, flags.cache_type_v);
  if (!kv_type) {
    return fail(std::move(kv_type.error()));
  }
  options.kv_type = *kv_type;
  if (auto used = check_selection_is_used(flags.sparse); !used) {
    return fail(std::move(used.error()));
  }
  auto sparse = check_sparse_flags(flags.sparse);
  if (!sparse) {
    return fail(std::move(sparse.error()));
  }
  options.sparse = *sparse;
  TierFlags home_flags = flags.tiers;
  auto store = check_store_flags(home_flags);
  if (!store) {
    return fail(std::move(store.error()));
  }
  options.store = std::move(*store);
  if (options.store.is_on() && flags.no_prefix_cache) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("{} is given, which --no-prefix-cache leaves without use",
                            flags.tiers.remote.empty() ? "--kv-disk-path" : "--kv-remote"));
  }
  auto tiers = check_tiers_and_drafts(home_flags, flags.spec, options.sparse);
  if (!tiers) {
    return fail(std::move(tiers.error()));
  }
  options.home = std::move(tiers->home);
  options.spec = std::move(tiers->spec);
  options.on_miss = tiers->on_miss;
  auto role = check_role_flags(flags.role);
  if (!role) {
    return fail(std::move(role.error()));
  }
  options.role = std::move(*role);
  auto compression = check_compress_flags(flags.compress);
  if (!compression) {
    return fail(std::move(compression.error()));
  }
  options.compression = *compression;
  options.scheduler.decode_floor_tokens = decode_floor_tokens(options.sparse);
  auto kv_fast_bytes = optional_size("--kv-fast-bytes", flags.kv_fast_bytes);
  if (!kv_fast_bytes) {
    return fail(std::move(kv_fast_bytes.error()));
  }
  options.kv_fast_bytes = *kv_fast_bytes;
  auto http = check_http_flags(flags.http);
  if (!http) {
    return fail(std::move(http.error()));
  }
  options.server.http = std::move(http->http);
  options.server.api.access = std::move(http->access);
  options.shutdown_timeout = http->shutdown_timeout;
  options.server.api.shared_prefix_cache = flags.shared_prefix_cache;
  options.server.api.log_jsonl = flags.log_jsonl;
  options.flags = std::move(flags);
  return options;
}

}  // namespace karez
