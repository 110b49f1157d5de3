#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <thread>
#include <utility>

#include "base/bytes.h"
#include "base/ip_address.h"
#include "base/system_memory.h"
#include "cli/commands.h"
#include "cli/flag_checks.h"
#include "cli/interrupt.h"
#include "cli/report.h"
#include "cli/serve_options.h"
#include "engine/attached_key_index.h"
#include "engine/engine.h"
#include "engine/home_tier.h"
#include "engine/kv_capacity.h"
#include "engine/kv_identity.h"
#include "engine/role_home.h"
#include "engine/stored_prefixes.h"
#include "engine/vocabulary.h"
#include "kv/kv_cache_manager.h"
#include "model/ggml_model_runner.h"
#include "model/gguf_file.h"
#include "model/model_config.h"
#include "model/model_digest.h"
#include "model/tokenizer.h"
#include "server/server.h"
#include "server/tokenizer_codec.h"

namespace karez {
namespace {

constexpr std::int64_t kDefaultContexts = 8;

struct ModelFile {
  ModelConfig config;
  Sha256Digest digest;
};

Expected<ModelFile> read_model_file(const std::string& path) {
  auto file = GgufFile::open(path);
  if (!file) {
    return fail(std::move(file.error()));
  }
  auto config = read_model_config(*file);
  if (!config) {
    return fail(std::move(config.error()));
  }
  return ModelFile{std::move(*config), model_digest(*file)};
}

// Room for some full contexts, but never for less than one, which a request may ask for.
std::int64_t kv_cap(const KVCacheSpec& spec, const ServeOptions& options, int context_tokens) {
  if (options.kv_fast_bytes) {
    return *options.kv_fast_bytes;
  }
  const std::int64_t one =
      bytes_for_sequence(spec, context_tokens, options.scheduler.max_num_batched_tokens);
  const std::int64_t contexts =
      std::min<std::int64_t>(options.scheduler.max_num_seqs, kDefaultContexts);
  return std::max(one, std::min(one * contexts, memory_limit_bytes() / 2));
}

// A template that cannot be used is an error if the user named it; else chats alone are refused.
Expected<void> check_template(const Tokenizer& tokenizer, const std::string& named) {
  const std::vector<ChatMessage> probe = {{"user", "x"}};
  const auto rendered = tokenizer.tokenize_chat(probe, /*add_generation_prompt=*/true);
  if (rendered || rendered.error().code() != StatusCode::kUnimplemented) {
    return {};
  }
  if (!named.empty()) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("--chat-template is {}: {}", named, rendered.error().message()));
  }
  report_note("/v1/chat/completions will be refused unless --chat-template names a template: " +
              rendered.error().message());
  return {};
}

ModelInfo model_info(const ServeOptions& options, int context_tokens) {
  const std::chrono::seconds now = std::chrono::duration_cast<std::chrono::seconds>(
      std::chrono::system_clock::now().time_since_epoch());
  const std::filesystem::path file(options.flags.model_path);
  return {.name = options.flags.alias.empty() ? file.stem().string() : options.flags.alias,
          .context_tokens = context_tokens,
          .block_tokens = kBlockSize,
          .max_num_seqs = options.scheduler.max_num_seqs,
          .created_unix_seconds = now.count(),
          .kv_role = options.role.role,
          .allowed_peers = options.role.allowed_peers};
}

// Unlike that of every other process, also of one that had its port before.
std::string new_engine_id() {
  std::random_device random;
  return fmt::format("karez-{:08x}{:08x}", random(), random());
}

Expected<int> serve(const ServeFlags& typed) {
  const InterruptGuard interrupt;
  // A reader of standard output that goes away is not a reason to end.
  std::signal(SIGPIPE, SIG_IGN);
  auto checked = check_serve_flags(typed);
  if (!checked) {
    return fail(std::move(checked.error()));
  }
  const ServeOptions& options = *checked;
  if (options.role.is_on() && has_network(options.role.transports)) {
    // Else UCX holds the engine for as long as a peer's machine does not answer; it takes this from
    // the environment only.
    ::setenv("UCX_TCP_CONN_NB", "y", 0);  // NOLINT(concurrency-mt-unsafe): no thread runs yet
  }

  // Everything that can be wrong with the flags is found before the server listens.
  auto model_file = read_model_file(options.flags.model_path);
  if (!model_file) {
    return fail(std::move(model_file.error()));
  }
  const ModelConfig* config = &model_file->config;
  if (auto usable = check_sparse_for_model(options.sparse, config->num_layers); !usable) {
    return fail(std::move(usable.error()));
  }
  const auto context = context_tokens_of(options.flags.context_tokens, config->context_length);
  if (!context) {
    return fail(context.error());
  }
  const KVCacheSpec spec = config->kv_cache_spec(options.kv_type);
  const std::string identity = kv_identity(model_file->digest, spec);
  auto prefixes = make_prefix_store(spec, identity, options.store, report_note);
  if (!prefixes) {
    return fail(std::move(prefixes.error()));
  }
  if (options.role.consumes() && options.role.allowed_peers.is_default() &&
      !names_loopback(options.role.host)) {
    report_note("KV is taken from producers on this machine only; --kv-allow-peers names others");
  }
  auto home = make_role_home(spec, {.role = options.role,
                                    .home = options.home,
                                    .sparse = options.sparse,
                                    .model_digest = model_file->digest,
                                    .context_tokens = *context,
                                    .max_num_seqs = options.scheduler.max_num_seqs});
  if (!home) {
    return fail(std::move(home.error()));
  }
  auto kv = KVCacheManager::create(spec, kv_cap(spec, options, *context), std::move(home->tier));
  if (!kv) {
    return fail(kv.error().code(), "--kv-fast-bytes: " + kv.error().message());
  }
  if (options.flags.compress.compress && !(*kv)->compressible_group()) {
    return fail(StatusCode::kInvalidArgument, kNothingToCompress);
  }
  const std::int64_t cap_bytes = (*kv)->stats().cap_bytes;
  const std::int64_t context_bytes =
      spec.slots_for_sequence(*context, options.scheduler.max_num_batched_tokens) *
      static_cast<std::int64_t>(spec.slot_bytes());
  if (context_bytes > cap_bytes && !options.home.is_on()) {
    report_note(fmt::format(
        "the KV cap of {} is less than the {} of one context of {} tokens: longer requests are "
        "refused or end early",
        format_bytes(cap_bytes), format_bytes(context_bytes), *context));
  }
  auto tokenizer = Tokenizer::load(options.flags.model_path, options.flags.chat_template);
  if (!tokenizer) {
    return fail(std::move(tokenizer.error()));
  }
  if (auto usable = check_template(**tokenizer, options.flags.chat_template); !usable) {
    return fail(std::move(usable.error()));
  }
  const TokenizerCodec codec(**tokenizer);
  const auto vocabulary = model_vocabulary(**tokenizer, *context);

  auto server = Server::start(options.server);
  if (!server) {
    return fail(std::move(server.error()));
  }
  ModelRunnerOptions runner_options;
  runner_options.num_threads = options.threads;
  runner_options.kv_type = options.kv_type;
  runner_options.repack_weights = !options.flags.no_repack;
  const SparseOptions sparse = with_sparse_drafts(options.sparse, options.spec);
  runner_options.sparse = sparse;
  auto loader = std::make_unique<BlockLoader>(options.on_miss, options.home.lookahead);
  if (options.home.is_on()) {
    runner_options.selection_listener = loader.get();
  }
  auto runner = load_model(options.flags.model_path, runner_options, [&](double share) {
    (*server)->set_progress(share, "loading weights");
    return !interrupt.flag();
  });
  if (interrupt.flag()) {
    return kExitOk;
  }
  if (!runner) {
    return fail(std::move(runner.error()));
  }
  auto key_index = attach_key_index(**kv, sparse, **runner, **tokenizer,
                                    options.scheduler.max_num_batched_tokens, *context);
  if (!key_index) {
    return fail(std::move(key_index.error()));
  }
  auto speculation = make_speculation(options.spec,
                                      {.tokenizer = tokenizer->get(),
                                       .runner = runner->get(),
                                       .kv = kv->get(),
                                       .key_index = key_index->get(),
                                       .loader = options.home.is_on() ? loader.get() : nullptr,
                                       .kv_type = options.kv_type,
                                       .num_threads = options.threads,
                                       .context_tokens = *context,
                                       .max_batch_tokens = options.scheduler.max_num_batched_tokens,
                                       .repack_weights = !options.flags.no_repack},
                                      [&](double share) {
                                        (*server)->set_progress(share, "loading the draft model");
                                        return !interrupt.flag();
                                      });
  if (interrupt.flag()) {
    return kExitOk;
  }
  if (!speculation) {
    return fail(std::move(speculation.error()));
  }

  EngineOptions engine_options;
  engine_options.scheduler = options.scheduler;
  engine_options.scheduler.decode_read_tokens = decode_read_tokens(options.sparse, spec);
  if (options.sparse.is_on()) {
    engine_options.scheduler.max_dense_tokens =
        options.sparse.token_budget / kBlockSize * kBlockSize;
  }
  engine_options.dense_rows = !options.sparse.is_on();
  engine_options.context_tokens = *context;
  engine_options.compress = options.flags.compress.compress;
  engine_options.compression = options.compression;
  engine_options.max_queue = static_cast<int>(options.flags.max_queue);
  engine_options.prefix_cache = !options.flags.no_prefix_cache;
  engine_options.kv_identity = identity;
  engine_options.load_limit_seconds = options.store.load_limit_seconds;
  auto peers = make_peers(*home, options.role, **kv, key_index->get(), new_engine_id(),
                          (*runner)->config().vocab_size, report_note);
  if (!peers) {
    return fail(std::move(peers.error()));
  }
  peers->log = report_note;
  auto engine = Engine::create(engine_options, std::move(*runner), std::move(*kv), *vocabulary,
                               std::move(*key_index), std::move(loader), std::move(*speculation),
                               std::move(*prefixes), std::move(*peers));
  if (!engine) {
    return fail(std::move(engine.error()));
  }
  ServerBackend backend;
  backend.engine = engine->get();
  backend.codec = &codec;
  backend.model = model_info(options, *context);
  (*server)->set_backend(backend);
  fmt::print("karez: {} at {} (context {} tokens, KV cap {})\n", backend.model.name,
             (*server)->url(), *context, format_bytes(cap_bytes));
  std::fflush(stdout);

  while (!interrupt.flag()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  const bool clean = (*server)->shut_down(options.shutdown_timeout);
  (*engine)->shutdown(std::chrono::milliseconds(0));
  if (!clean) {
    report_note("some answers were cut at --shutdown-timeout");
  }
  return kExitOk;
}

}  // namespace

void add_serve_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("serve", "Answer many clients over HTTP (OpenAI's API)");
  auto flags = std::make_shared<ServeFlags>();
  add_serve_flags(*command, *flags);
  command->callback([flags, &exit_code] {
    auto code = serve(*flags);
    exit_code = code ? *code : report_error(code.error());
  });
}

}  // namespace karez
