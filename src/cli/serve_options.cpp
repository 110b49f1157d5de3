#include "cli/serve_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <limits>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "cli/flag_checks.h"
#include "cli/kv_type_flags.h"
#include "cli/text_file.h"
#include "engine/default_threads.h"

namespace karez {
namespace {

constexpr std::size_t kMaxKeyFileBytes = 1 << 20;

// Reads numbers and keeps the first problem, so that the caller asks once.
class RangeCheck {
 public:
  int operator()(std::string_view flag, std::int64_t value, std::int64_t low, std::int64_t high) {
    if ((value < low || value > high) && !problem_) {
      problem_ = Status(StatusCode::kInvalidArgument,
                        fmt::format("{} is {}, allowed are {} to {}", flag, value, low, high));
    }
    return static_cast<int>(value);
  }
  std::optional<Status> problem_;
};

// One key a line; empty lines do not count.
Expected<void> read_keys(ServeFlags& flags) {
  if (!flags.api_key_file.empty()) {
    auto text = read_text_file(flags.api_key_file, kMaxKeyFileBytes);
    if (!text) {
      return fail(text.error().code(), "--api-key-file: " + text.error().message());
    }
    std::string_view rest = *text;
    while (!rest.empty()) {
      const std::size_t end = rest.find('\n');
      std::string_view line = rest.substr(0, end);
      if (line.ends_with('\r')) {
        line.remove_suffix(1);
      }
      if (!line.empty()) {
        flags.api_keys.emplace_back(line);
      }
      rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    }
    if (flags.api_keys.empty()) {
      return fail(StatusCode::kInvalidArgument,
                  fmt::format("--api-key-file {} holds no key", flags.api_key_file));
    }
  }
  for (const std::string& key : flags.api_keys) {
    if (key.empty()) {
      return fail(StatusCode::kInvalidArgument, "--api-key is empty, which would let everyone in");
    }
  }
  return {};
}

}  // namespace

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
  text("--host", flags.host, "Address to listen on", "ADDRESS", http)->capture_default_str();
  number("--port", flags.port, "Port; 0: any free one", http);
  command
      .add_option("--api-key", flags.api_keys,
                  "Key that clients must send; may be given repeatedly")
      ->type_name("KEY")
      ->allow_extra_args(false)
      ->group(http);
  text("--api-key-file", flags.api_key_file, "Keys from a file, one a line", "FILE", http);
  command
      .add_option("--cors-origins", flags.cors_origins,
                  "Web origins that may use the server from a browser; * for all")
      ->type_name("ORIGIN")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->group(http);
  text("--ssl-key-file", flags.ssl_key_file, "TLS: private key (PEM)", "FILE", http);
  text("--ssl-cert-file", flags.ssl_cert_file, "TLS: certificate chain (PEM)", "FILE", http);
  text("--max-body-bytes", flags.max_body_bytes, "Largest request body", "BYTES", http)
      ->capture_default_str();
  number("--threads-http", flags.io_threads, "Threads for connections", http);
  number("--timeout", flags.timeout_seconds,
         "Seconds for a client to send its request's body, or to take what is written to it", http);
  number("--idle-timeout", flags.idle_timeout_seconds,
         "Seconds until a connection without a request is closed", http);
  number("--shutdown-timeout", flags.shutdown_timeout_seconds,
         "Seconds that running answers have to end after SIGTERM", http);
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
  constexpr std::int64_t kMaxSeconds = 86'400;
  ServeOptions options;
  RangeCheck in_range;
  options.threads =
      flags.has_threads ? in_range("-t", flags.threads, 1, kMaxThreads) : default_num_threads();
  options.scheduler.max_num_seqs = in_range("--max-num-seqs (-np)", flags.max_num_seqs, 1, 65'536);
  options.scheduler.max_num_batched_tokens =
      in_range("--max-num-batched-tokens", flags.max_num_batched_tokens, 1, 65'536);
  in_range("--max-queue", flags.max_queue, 1, kMaxInt);
  HttpOptions& http = options.server.http;
  http.host = flags.host;
  http.port = in_range("--port", flags.port, 0, 65'535);
  http.io_threads = in_range("--threads-http", flags.io_threads, 1, 64);
  http.body_timeout =
      std::chrono::seconds(in_range("--timeout", flags.timeout_seconds, 1, kMaxSeconds));
  http.write_timeout = http.body_timeout;
  http.idle_timeout =
      std::chrono::seconds(in_range("--idle-timeout", flags.idle_timeout_seconds, 1, kMaxSeconds));
  in_range("--shutdown-timeout", flags.shutdown_timeout_seconds, 0, kMaxSeconds);
  if (in_range.problem_) {
    return fail(std::move(*in_range.problem_));
  }
  if (flags.scheduling_policy == "priority") {
    options.scheduler.policy = SchedulingPolicy::kPriority;
  } else if (flags.scheduling_policy != "fcfs") {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("--scheduling-policy is {}, allowed are fcfs and priority",
                            flags.scheduling_policy));
  }
  const auto body = parse_bytes(flags.max_body_bytes);
  if (!body || *body < 1024 || *body > kGiB) {
    return fail(
        StatusCode::kInvalidArgument,
        fmt::format("--max-body-bytes is {}, allowed are 1KiB to 1GiB", flags.max_body_bytes));
  }
  http.max_body_bytes = static_cast<std::size_t>(*body);
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
  auto tiers = check_tiers_and_drafts(flags.tiers, flags.spec, options.sparse);
  if (!tiers) {
    return fail(std::move(tiers.error()));
  }
  options.home = std::move(tiers->home);
  options.spec = std::move(tiers->spec);
  options.on_miss = tiers->on_miss;
  auto compression = check_compress_flags(flags.compress);
  if (!compression) {
    return fail(std::move(compression.error()));
  }
  options.compression = *compression;
  options.scheduler.decode_floor_tokens = decode_floor_tokens(options.sparse);
  if (!flags.kv_fast_bytes.empty()) {
    auto bytes = parse_bytes(flags.kv_fast_bytes);
    if (!bytes) {
      return fail(bytes.error().code(), "--kv-fast-bytes: " + bytes.error().message());
    }
    options.kv_fast_bytes = *bytes;
  }
  if (auto keys = read_keys(flags); !keys) {
    return fail(std::move(keys.error()));
  }
  http.ssl_key_file = flags.ssl_key_file;
  http.ssl_cert_file = flags.ssl_cert_file;
  options.server.api.access.api_keys = flags.api_keys;
  options.server.api.access.cors_origins = flags.cors_origins;
  options.server.api.shared_prefix_cache = flags.shared_prefix_cache;
  options.server.api.log_jsonl = flags.log_jsonl;
  options.flags = std::move(flags);
  return options;
}

}  // namespace karez
