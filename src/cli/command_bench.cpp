#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "cli/bench_progress.h"
#include "cli/commands.h"
#include "cli/flag_checks.h"
#include "cli/report.h"
#include "cli/report_files.h"
#include "cli/sparse_flags.h"
#include "cli/text_file.h"
#include "cli/tier_flags.h"
#include "engine/bench.h"
#include "engine/bench_peer.h"

namespace karez {
namespace {

constexpr int kMaxDepth = 1 << 24;
constexpr int kMaxConcurrency = 256;  // libllama's limit as well
constexpr int kMaxSteps = 100000;
constexpr std::size_t kMaxPromptBytes = 256 * kMiB;

struct BenchFlags {
  BenchOptions options;
  std::vector<std::string> kv_types = {"bf16"};
  std::vector<std::string> kv_modes = {"dense"};
  SparseFlags sparse;
  std::string kv_fast_bytes;
  TierFlags tiers;
  std::vector<std::string> variants;
  std::string compare;
  std::string json_path;
  std::string trace_path;
};

Expected<BenchOptions> read_flags(const BenchFlags& flags) {
  BenchOptions options = flags.options;
  options.kv_types.clear();
  for (const std::string& name : flags.kv_types) {
    const auto type = parse_kv_type(name);
    if (!type) {
      return fail(type.error());
    }
    options.kv_types.push_back(*type);
  }
  const auto has_mode = [&](const char* mode) {
    return std::find(flags.kv_modes.begin(), flags.kv_modes.end(), mode) != flags.kv_modes.end();
  };
  options.dense_mode = has_mode("dense");
  if (!has_mode("sparse")) {
    options.token_budgets.clear();
  }
  for (const int budget : options.token_budgets) {
    SparseFlags sparse = flags.sparse;
    sparse.token_budget = budget;
    const auto checked = check_sparse_flags(sparse);
    if (!checked) {
      return fail(checked.error());
    }
    options.sparse = *checked;
  }
  auto home = check_tier_flags(flags.tiers);
  if (!home) {
    return fail(std::move(home.error()));
  }
  options.home = std::move(*home);
  const auto on_miss = check_on_miss(flags.tiers, options.home, options.sparse);
  if (!on_miss) {
    return fail(on_miss.error());
  }
  options.on_miss = *on_miss;
  SpecOptions no_drafts;  // probes are what the tokens say
  if (auto usable = check_lookahead(flags.tiers, no_drafts, options.home, options.sparse);
      !usable) {
    return fail(std::move(usable.error()));
  }
  for (const std::string& text : flags.variants) {
    const auto variant = parse_bench_variant(text);
    if (!variant) {
      return fail(variant.error().code(), "--variant: " + variant.error().message());
    }
    TierFlags tiers = flags.tiers;
    tiers.lookahead = to_string(variant->sources);
    HomeOptions home_of_variant = options.home;
    SparseOptions sparse_of_variant = options.sparse;
    if (auto usable = check_lookahead(tiers, no_drafts, home_of_variant, sparse_of_variant);
        !usable) {
      return fail(std::move(usable.error()));
    }
    options.variants.push_back(*variant);
  }
  auto kv_fast_bytes = optional_size("--kv-fast-bytes", flags.kv_fast_bytes);
  if (!kv_fast_bytes) {
    return fail(std::move(kv_fast_bytes.error()));
  }
  if (*kv_fast_bytes == 0) {
    return fail(StatusCode::kInvalidArgument, "--kv-fast-bytes is 0, allowed are values from 1");
  }
  options.kv_fast_bytes = kv_fast_bytes->value_or(0);
  if (!options.prompt_name.empty()) {
    auto text = read_text_file(options.prompt_name, kMaxPromptBytes);
    if (!text) {
      return fail(text.error());
    }
    options.prompt_text = std::move(*text);
  }
  options.compare_llama = !flags.compare.empty();
  if (options.peer_settings != "auto") {
    if (const auto parsed = parse_peer_settings(options.peer_settings); !parsed) {
      return fail(parsed.error());
    }
  }
  // Each depth continues the prompt of the one before it.
  std::vector<int>& depths = options.shape.depths;
  std::sort(depths.begin(), depths.end());
  depths.erase(std::unique(depths.begin(), depths.end()), depths.end());
  return options;
}

int run(const BenchFlags& flags) {
  auto options = read_flags(flags);
  if (!options) {
    return report_error(options.error());
  }
  for (const std::string& path : {flags.json_path, flags.trace_path}) {
    // A file that cannot be written must not show only after the measurement.
    if (path.empty()) {
      continue;
    }
    if (auto writable = check_writable(path); !writable) {
      return report_error(writable.error());
    }
  }
  TraceWriter trace;
  options->trace = flags.trace_path.empty() ? nullptr : &trace;
  auto line = std::make_unique<BenchProgressLine>();
  const auto report =
      run_bench(*options, [&](std::string_view what, double done) { line->update(what, done); });
  line.reset();
  if (!report) {
    return report_error(report.error());
  }
  std::vector<ReportFile> files;
  if (!flags.json_path.empty()) {
    files.push_back({flags.json_path, to_json(*report).dump(2) + "\n"});
  }
  if (!flags.trace_path.empty()) {
    files.push_back({flags.trace_path, trace.to_json()});
  }
  if (const auto written = write_report(to_table(*report), files); !written) {
    return report_error(written.error());
  }
  return kExitOk;
}

}  // namespace

void add_bench_command(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<BenchFlags>();
  BenchOptions& options = flags->options;
  options.shape.depths = {512, 4096};
  options.shape.concurrencies = {1, 8};
  options.token_budgets = {2048};
  options.num_threads =
      std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMaxThreads);

  CLI::App* bench = app.add_subcommand(
      "bench", "Measure prefill and decode over depth, concurrency and KV type.");
  bench->add_option("-m,--model", options.model_path, "GGUF file")->required();
  bench->add_option("--depth", options.shape.depths, "Tokens in a sequence (512,4096)")
      ->delimiter(',')
      ->check(CLI::Range(1, kMaxDepth));
  bench
      ->add_option("--concurrency", options.shape.concurrencies,
                   "Sequences that decode together (1,8)")
      ->delimiter(',')
      ->check(CLI::Range(1, kMaxConcurrency));
  bench->add_option("--cache-type-k", flags->kv_types, "KV types: bf16, f32, q8_0 (-ctk; bf16)")
      ->delimiter(',');
  bench->add_option("--kv-mode", flags->kv_modes, "dense, sparse; both are paired (dense)")
      ->delimiter(',')
      ->check(CLI::IsMember({"dense", "sparse"}));
  bench
      ->add_option("--token-budget", options.token_budgets,
                   "Tokens that a row of sparse decode attends to (2048)")
      ->delimiter(',')
      ->check(CLI::Range(1, kMaxDepth));
  add_selection_flags(*bench, flags->sparse);
  add_tier_flags(*bench, flags->tiers);
  bench
      ->add_flag("--agreement", flags->options.agreement,
                 "Measure too how well guesses agree with what rows then select")
      ->group("Tiers below --kv-fast-bytes");
  bench
      ->add_option(
          "--variant", flags->variants,
          "Measured side by side: resident (no tier), or lookahead sources with a share of "
          "the KV as the cap (off@26%, layer@30%); may be given several times")
      ->type_name("WHAT")
      ->allow_extra_args(false)
      ->group("Tiers below --kv-fast-bytes");
  bench->add_option("-t,--threads", options.num_threads, "Threads (all processors)")
      ->check(CLI::Range(1, kMaxThreads));
  bench
      ->add_option("--generate", options.shape.generate_tokens, "Decode steps of a repetition (32)")
      ->check(CLI::Range(1, kMaxSteps));
  bench
      ->add_option("--repetitions", options.shape.repetitions,
                   "Repetitions of each decode; medians are shown (5)")
      ->check(CLI::Range(1, kMaxSteps));
  bench
      ->add_option("--prefill-repetitions", options.shape.prefill_repetitions,
                   "Repetitions of the prompt (1)")
      ->check(CLI::Range(1, kMaxSteps));
  bench
      ->add_option("-c,--ctx-size", options.context_tokens,
                   "Limit of a sequence; beyond what the model was trained for only speed counts "
                   "(the model's)")
      ->check(CLI::Range(2, kMaxDepth + kMaxSteps));
  bench
      ->add_option("--ubatch-size", options.step_tokens,
                   "Prompt tokens computed at once (-ub; 512)")
      ->check(CLI::Range(1, kMaxDepth));
  bench->add_option("--kv-fast-bytes", flags->kv_fast_bytes,
                    "Cap of the KV store, such as 2GiB (what the run needs)");
  bench
      ->add_option("--compare", flags->compare,
                   "Run this engine on the same file and tokens, in turns with ours")
      ->check(CLI::IsMember({"llama.cpp"}));
  bench->add_option("--compare-settings", options.peer_settings,
                    "auto: try and take the fastest; or fa=on|off,k=TYPE,v=TYPE,ub=TOKENS (auto)");
  bench->add_option("--prompt-file", options.prompt_name,
                    "Text to take the prompt's tokens from (pseudo-random tokens)");
  bench->add_option("--seed", options.seed, "Of the pseudo-random tokens (1)");
  bench->add_option("--json", flags->json_path, "Write all figures to this file");
  bench->add_option("--trace", flags->trace_path,
                    "Write to this file what our engines computed and moved when, for "
                    "ui.perfetto.dev (Chrome trace format)");
  bench->callback([flags, &exit_code] { exit_code = run(*flags); });
}

}  // namespace karez
