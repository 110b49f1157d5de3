#include "engine/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <random>
#include <string_view>
#include <utility>

#include "attention/memory_bandwidth.h"
#include "base/bytes.h"
#include "engine/attached_key_index.h"
#include "engine/bench_engine.h"
#include "engine/bench_peer.h"
#include "engine/block_loader.h"
#include "engine/kv_capacity.h"
#include "kv/kv_cache_manager.h"
#include "model/ggml_model_runner.h"
#include "model/gguf_file.h"
#include "model/llama_reference.h"
#include "model/tokenizer.h"

namespace karez {
namespace {

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) {
      const std::size_t colon = line.find(": ");
      return colon == std::string::npos ? line : line.substr(colon + 2);
    }
  }
  return "unknown processor";
}

int context_of(const BenchOptions& options, const ModelConfig& config) {
  return options.context_tokens > 0 ? options.context_tokens : config.context_length;
}

Expected<void> check_shape(const BenchOptions& options, const ModelConfig& config) {
  const BenchShape& shape = options.shape;
  const int needed = shape.max_depth() + shape.generate_tokens;
  const int context = context_of(options, config);
  if (needed > context) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("depth {} and {} generated tokens need a context of {} tokens; it is "
                            "{}{}: the largest depth is {}",
                            shape.max_depth(), shape.generate_tokens, needed, context,
                            options.context_tokens > 0 ? "" : ", that of the model (--ctx-size)",
                            std::max(0, context - shape.generate_tokens)));
  }
  return {};
}

// The base sequence at its deepest and a copy for each concurrent one. Depths are not multiples of
// the step, so a window's oldest block may stay a little longer than in whole steps.
std::int64_t needed_kv_bytes(const KVCacheSpec& spec, const BenchShape& shape, int step_tokens) {
  const std::int64_t base = spec.slots_for_sequence(shape.max_depth(), step_tokens);
  const std::int64_t copy =
      spec.slots_for_sequence(shape.max_depth() + shape.generate_tokens, step_tokens);
  constexpr std::int64_t kSlackBlocks = 2;
  const std::int64_t slack = kSlackBlocks * spec.num_layers * spec.num_kv_heads;
  return (base + slack + (copy + slack) * shape.max_concurrency()) *
         static_cast<std::int64_t>(spec.slot_bytes());
}

// Of what the copies have at the end, without the base.
std::int64_t share_of_kv(const KVCacheSpec& spec, const BenchShape& shape, double share) {
  const std::int64_t copy =
      spec.slots_for_sequence(shape.max_depth() + shape.generate_tokens, kBlockSize);
  const double slots = share * static_cast<double>(copy * shape.max_concurrency());
  return static_cast<std::int64_t>(slots) * static_cast<std::int64_t>(spec.slot_bytes());
}

Expected<std::int64_t> kv_cap(const BenchOptions& options, const KVCacheSpec& spec) {
  const std::int64_t needed = needed_kv_bytes(spec, options.shape, options.step_tokens);
  if (options.kv_fast_bytes != 0 && options.kv_fast_bytes < needed && !options.home.is_on()) {
    return fail(StatusCode::kResourceExhausted,
                fmt::format("--kv-fast-bytes is {}; a prompt of {} tokens and {} copies of it, "
                            "with {} generated tokens each, need {} ({} bytes) as {}",
                            format_bytes(options.kv_fast_bytes), options.shape.max_depth(),
                            options.shape.max_concurrency(), options.shape.generate_tokens,
                            format_bytes(needed), needed, to_string(spec.type)));
  }
  return options.kv_fast_bytes != 0 ? options.kv_fast_bytes : needed;
}

// Tokens that stand for text: control tokens may be special to a model.
std::vector<TokenId> text_tokens(const Tokenizer& tokenizer) {
  std::vector<TokenId> tokens;
  for (TokenId token = 0; token < tokenizer.vocab_size(); ++token) {
    if (!tokenizer.is_end_of_generation(token) && !tokenizer.piece(token, false).empty()) {
      tokens.push_back(token);
    }
  }
  return tokens;
}

// The prompt, and what follows it as far as there is text.
Expected<std::vector<TokenId>> tokens_of_text(const Tokenizer& tokenizer,
                                              const BenchOptions& options) {
  const auto num_tokens = static_cast<std::size_t>(options.shape.max_depth());
  auto tokens = tokenizer.tokenize(options.prompt_text, true, false);
  if (!tokens) {
    return fail(tokens.error().code(),
                fmt::format("{}: {}", options.prompt_name, tokens.error().message()));
  }
  if (tokens->size() < num_tokens) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("{} has {} tokens; the largest depth needs {}", options.prompt_name,
                            tokens->size(), num_tokens));
  }
  return tokens;
}

Expected<BenchTokens> make_tokens(const Tokenizer& tokenizer, const BenchOptions& options) {
  const std::vector<TokenId> choices = text_tokens(tokenizer);
  if (choices.empty()) {
    return fail(StatusCode::kCorruption,
                fmt::format("{}: the vocabulary has no token that is text", options.model_path));
  }
  std::mt19937_64 random(options.seed);
  const auto draw = [&](int count) {
    std::vector<TokenId> tokens(static_cast<std::size_t>(count));
    std::generate(tokens.begin(), tokens.end(), [&] { return choices[random() % choices.size()]; });
    return tokens;
  };
  BenchTokens tokens;
  tokens.continuation = draw(options.shape.generate_tokens * options.shape.max_concurrency());
  if (options.prompt_name.empty()) {
    tokens.prompt = draw(options.shape.max_depth());
    return tokens;
  }
  auto prompt = tokens_of_text(tokenizer, options);
  if (!prompt) {
    return fail(prompt.error());
  }
  const auto depth = static_cast<std::size_t>(options.shape.max_depth());
  tokens.text = *prompt;
  prompt->resize(depth);
  tokens.prompt = std::move(*prompt);
  return tokens;
}

class Bench {
 public:
  Bench(const BenchOptions& options, const BenchProgress& progress)
      : options_(options), progress_(progress) {}

  Expected<BenchReport> run() {
    if (auto ready = prepare(); !ready) {
      return fail(ready.error());
    }
    for (const KvType type : options_.kv_types) {
      if (auto done = run_type(type); !done) {
        return fail(done.error());
      }
    }
    std::vector<double> bandwidths;
    for (const BenchRun& run : report_.runs) {
      if (run.read_bandwidth_bytes_per_second > 0) {
        bandwidths.push_back(run.read_bandwidth_bytes_per_second);
      }
    }
    report_.read_bandwidth_bytes_per_second = median(std::move(bandwidths));
    return std::move(report_);
  }

 private:
  // Everything that can be wrong with the input, before anything slow.
  Expected<void> prepare() {
    const auto file = GgufFile::open(options_.model_path);
    if (!file) {
      return fail(file.error());
    }
    const auto config = read_model_config(*file);
    if (!config) {
      return fail(config.error());
    }
    if (auto fits = check_shape(options_, *config); !fits) {
      return fits;
    }
    for (const KvType type : options_.kv_types) {
      if (auto cap = kv_cap(options_, config->kv_cache_spec(type)); !cap) {
        return fail(cap.error());
      }
    }
    auto tokenizer = Tokenizer::load(options_.model_path);
    if (!tokenizer) {
      return fail(tokenizer.error());
    }
    tokenizer_ = std::move(*tokenizer);
    auto tokens = make_tokens(*tokenizer_, options_);
    if (!tokens) {
      return fail(tokens.error());
    }
    tokens_ = std::move(*tokens);
    if (options_.shape.max_depth() + options_.shape.generate_tokens > config->context_length) {
      report_.exceeded_context_tokens = config->context_length;
    }
    report_.cpu_name = cpu_name();
    report_.cpu_level = to_string(detected_cpu_level());
    report_.seed = options_.seed;
    report_.tokens_from = options_.prompt_name.empty() ? "pseudo-random" : options_.prompt_name;
    return options_.compare_llama ? load_peer() : Expected<void>();
  }

  Expected<void> load_peer() {
    if (options_.peer_settings == "auto") {
      auto choice =
          find_best_peer_settings(options_.model_path, options_.num_threads, tokens_, progress_);
      if (!choice) {
        return fail(choice.error());
      }
      peer_settings_ = choice->settings;
      report_.peer_candidates = std::move(choice->tried);
    } else {
      const auto parsed = parse_peer_settings(options_.peer_settings);
      if (!parsed) {
        return fail(parsed.error());
      }
      peer_settings_ = *parsed;
    }
    report_.peer_settings = peer_settings_.to_string();
    auto peer = LlamaReference::load(
        options_.model_path,
        {.num_threads = options_.num_threads,
         .context_tokens = options_.shape.max_depth() + options_.shape.generate_tokens,
         .num_sequences = options_.shape.max_concurrency(),
         .batch_tokens = std::max(peer_settings_.step_tokens, options_.shape.max_concurrency()),
         .max_output_rows = options_.shape.max_concurrency(),
         .cache_type_k = peer_settings_.cache_type_k,
         .cache_type_v = peer_settings_.cache_type_v,
         .flash_attention = peer_settings_.flash_attention});
    if (!peer) {
      return fail(peer.error());
    }
    peer_ = std::move(*peer);
    return {};
  }

  // One of our engines with what it needs.
  struct Mode {
    std::unique_ptr<LookaheadMeter> meter;
    std::unique_ptr<BlockLoader> loader;
    std::unique_ptr<ModelRunner> runner;
    std::unique_ptr<KVCacheManager> kv;
    std::unique_ptr<KeyIndex> key_index;
    std::unique_ptr<BenchEngine> engine;
    BenchRun labels;
  };

  // token_budget: 0 is dense decode.
  Expected<Mode> load_mode(KvType type, int token_budget, const BenchVariant& variant) {
    SparseOptions sparse = options_.sparse;
    sparse.token_budget = token_budget;
    Mode mode;
    LookaheadOptions lookahead = options_.home.lookahead;
    lookahead.sources = variant.sources;
    mode.loader = std::make_unique<BlockLoader>(options_.on_miss, lookahead);
    // Dense decode reads everything in each step: below a cap it runs what fits, in the fast tier.
    const bool has_home = options_.home.is_on() && token_budget != 0 && !variant.is_resident;
    if (has_home) {
      add_what_lookahead_needs(variant.sources, sparse);
    }
    if (has_home && options_.agreement) {
      sparse.list_masses = true;
      mode.meter = std::make_unique<LookaheadMeter>();
      mode.loader->set_meter(mode.meter.get());
    }
    auto runner = load_model(options_.model_path,
                             {.num_threads = options_.num_threads,
                              .kv_type = type,
                              .sparse = sparse,
                              .selection_listener = has_home ? mode.loader.get() : nullptr,
                              .trace = options_.trace});
    if (!runner) {
      return fail(runner.error());
    }
    const ModelConfig& config = (*runner)->config();
    const KVCacheSpec spec = config.kv_cache_spec(type);
    auto cap = kv_cap(options_, spec);
    if (!cap) {
      return fail(cap.error());
    }
    if (variant.is_resident) {
      cap = needed_kv_bytes(spec, options_.shape, options_.step_tokens);
    } else if (variant.share) {
      cap = share_of_kv(spec, options_.shape, *variant.share);
    }
    int max_running = 0;
    std::int64_t store_bytes = *cap;
    std::unique_ptr<Tier> home;
    if (has_home) {
      auto made = make_home_tier(spec, options_.home);
      if (!made) {
        return fail(made.error());
      }
      home = std::move(*made);
      mode.labels.home = home->describe();
      mode.labels.on_miss = to_string(options_.on_miss);
    } else if (*cap < needed_kv_bytes(spec, options_.shape, options_.step_tokens)) {
      const int all = options_.shape.max_depth() + options_.shape.generate_tokens;
      max_running = static_cast<int>(sequences_in_cap(spec, *cap, all, options_.step_tokens));
      if (max_running == 0) {
        return fail(StatusCode::kResourceExhausted,
                    fmt::format("--kv-fast-bytes is {}; dense decode of {} tokens needs {} for one "
                                "sequence (--kv-mode sparse needs less)",
                                format_bytes(*cap), all,
                                format_bytes(bytes_for_sequence(spec, all, options_.step_tokens))));
      }
      // The sequence that is copied is an aid of the measurement and not counted.
      BenchShape running = options_.shape;
      running.concurrencies = {max_running};
      store_bytes = needed_kv_bytes(spec, running, options_.step_tokens);
      mode.labels.running = max_running;
    }
    auto kv = KVCacheManager::create(spec, store_bytes, std::move(home));
    if (!kv) {
      return fail(kv.error());
    }
    if (has_home) {
      (*kv)->residency()->set_trace(options_.trace);
    }
    auto key_index = attach_key_index(**kv, sparse, **runner, *tokenizer_, options_.step_tokens,
                                      options_.shape.max_depth() + options_.shape.generate_tokens);
    if (!key_index) {
      return fail(key_index.error());
    }
    if (has_home || variant.is_resident) {
      mode.labels.variant = variant.name();
    }
    mode.labels.engine = "karez";
    mode.labels.model = std::filesystem::path(options_.model_path).filename().string();
    mode.labels.kv_mode = token_budget == 0 ? "dense" : "sparse";
    mode.labels.token_budget = token_budget;
    mode.labels.kv_type = to_string(type);
    mode.labels.threads = options_.num_threads;
    mode.labels.kv_fast_bytes = max_running == 0 ? (*kv)->stats().cap_bytes : *cap;
    mode.labels.weight_read_bytes = config.weight_bytes;
    mode.engine = make_karez_bench_engine(**runner, **kv, key_index->get(),
                                          has_home ? mode.loader.get() : nullptr, mode.meter.get(),
                                          options_.step_tokens, max_running);
    mode.runner = std::move(*runner);
    mode.kv = std::move(*kv);
    mode.key_index = std::move(*key_index);
    return mode;
  }

  Expected<void> run_type(KvType type) {
    std::vector<int> budgets = options_.token_budgets;
    if (options_.dense_mode) {
      budgets.insert(budgets.begin(), 0);
    }
    std::vector<Mode> modes;
    std::vector<BenchSubject> subjects;
    for (const int budget : budgets) {
      std::vector<BenchVariant> variants(1);
      variants.front().sources = options_.home.lookahead.sources;
      if (budget != 0 && !options_.variants.empty()) {
        variants = options_.variants;
      }
      for (const BenchVariant& variant : variants) {
        auto mode = load_mode(type, budget, variant);
        if (!mode) {
          return fail(mode.error());
        }
        subjects.push_back({.engine = mode->engine.get(), .labels = mode->labels});
        modes.push_back(std::move(*mode));
      }
    }
    std::unique_ptr<BenchEngine> peer;
    if (peer_ != nullptr) {
      peer = make_llama_bench_engine(*peer_, peer_settings_.step_tokens);
      BenchRun labels;
      labels.engine = "llama.cpp";
      labels.model = std::filesystem::path(options_.model_path).filename().string();
      labels.kv_type = peer_settings_.kv_type();
      labels.threads = options_.num_threads;
      subjects.push_back({.engine = peer.get(), .labels = labels});
    }
    const auto probe = [this] { return measure_read_bandwidth(options_.num_threads); };
    auto runs = measure(subjects, options_.shape, tokens_, probe, progress_);
    if (!runs) {
      return fail(runs.error());
    }
    derive_figures(*runs);
    std::move(runs->begin(), runs->end(), std::back_inserter(report_.runs));
    return {};
  }

  const BenchOptions& options_;
  const BenchProgress& progress_;
  std::unique_ptr<Tokenizer> tokenizer_;
  BenchTokens tokens_;
  PeerSettings peer_settings_;
  std::unique_ptr<LlamaReference> peer_;
  BenchReport report_;
};

}  // namespace

Expected<BenchReport> run_bench(const BenchOptions& options, const BenchProgress& progress) {
  return Bench(options, progress).run();
}

}  // namespace karez
