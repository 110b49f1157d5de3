#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "cli/bench_progress.h"
#include "cli/commands.h"
#include "cli/eval_generate_flags.h"
#include "cli/flag_checks.h"
#include "cli/report.h"
#include "cli/report_files.h"
#include "cli/sparse_flags.h"
#include "cli/text_file.h"
#include "engine/eval.h"
#include "engine/key_centres.h"

namespace karez {
namespace {

constexpr std::size_t kMaxTextBytes = 256 * kMiB;

struct EvalFlags {
  EvalOptions options;
  std::vector<std::string> text_paths;
  std::vector<std::string> kv_modes;  // empty: sparse; with --generate dense
  std::vector<int> token_budgets = {512, 1024, 2048};
  std::vector<std::string> block_indexes = {"r2"};
  std::vector<std::string> kv_types = {"bf16"};
  std::string reference_type;
  std::string prompt_kv = "native";
  SparseFlags selection;  // budget and index are in the lists above
  std::optional<int> decode_tokens;
  std::optional<int> recall_stride;
  EvalGenerateFlags generate;
  std::string key_centre = "built-in";
  std::string filler_path;
  std::string json_path;
  std::string plot_path;
};

template <typename Value, typename Parse>
Expected<std::vector<Value>> parse_all(std::string_view flag, const std::vector<std::string>& names,
                                       const Parse& parse) {
  std::vector<Value> values;
  for (const std::string& name : names) {
    auto value = parse(name);
    if (!value) {
      return fail(value.error().code(), fmt::format("{}: {}", flag, value.error().message()));
    }
    if (std::find(values.begin(), values.end(), *value) == values.end()) {
      values.push_back(*value);
    }
  }
  return values;
}

Expected<bool> parse_is_sparse(std::string_view name) {
  if (name == "dense" || name == "sparse") {
    return name == "sparse";
  }
  return fail(StatusCode::kInvalidArgument,
              fmt::format("the KV mode is '{}', allowed are dense, sparse", name));
}

// The cross product; of a dense mode there is one for each KV type.
Expected<std::vector<EvalMode>> modes_of(const EvalFlags& flags) {
  const std::vector<std::string> default_modes = {is_given(flags.generate) ? "dense" : "sparse"};
  const auto kv_modes = parse_all<bool>(
      "--kv-mode", flags.kv_modes.empty() ? default_modes : flags.kv_modes, parse_is_sparse);
  const auto types = parse_all<KvType>("-ctk", flags.kv_types, parse_kv_type);
  const auto indexes =
      parse_all<KeyIndexKind>("--block-index", flags.block_indexes, parse_key_index_kind);
  if (!kv_modes || !types || !indexes) {
    return fail(!kv_modes ? kv_modes.error() : !types ? types.error() : indexes.error());
  }
  std::vector<int> budgets = flags.token_budgets;
  std::sort(budgets.begin(), budgets.end());
  budgets.erase(std::unique(budgets.begin(), budgets.end()), budgets.end());
  std::vector<EvalMode> modes;
  for (const KvType type : *types) {
    for (const bool is_sparse : *kv_modes) {
      if (!is_sparse) {
        modes.push_back({.kv_type = type});
        continue;
      }
      for (const KeyIndexKind index : *indexes) {
        for (const int budget : budgets) {
          modes.push_back(
              {.kv_type = type, .is_sparse = true, .token_budget = budget, .block_index = index});
        }
      }
    }
  }
  return modes;
}

// Each mode in each of the ways to compress; as they are if there is none.
std::vector<EvalMode> compressed(const std::vector<EvalMode>& modes,
                                 const std::vector<CompressionOptions>& compressions) {
  if (compressions.empty()) {
    return modes;
  }
  std::vector<EvalMode> all;
  for (EvalMode mode : modes) {
    for (const CompressionOptions& compression : compressions) {
      mode.compression = compression;
      all.push_back(mode);
    }
  }
  return all;
}

Expected<EvalText> read_text(const std::string& path) {
  auto text = read_text_file(path, kMaxTextBytes);
  if (!text) {
    return fail(text.error());
  }
  return EvalText{path.substr(path.find_last_of('/') + 1), std::move(*text)};
}

Expected<EvalOptions> read_flags(const EvalFlags& flags) {
  EvalOptions options = flags.options;
  auto modes = modes_of(flags);
  if (!modes) {
    return fail(modes.error());
  }
  const auto compressions = compressions_of(flags.generate);
  if (!compressions) {
    return fail(compressions.error());
  }
  const bool is_generated = is_given(flags.generate);
  if (is_generated && flags.recall_stride.value_or(0) != 0) {
    return fail(StatusCode::kInvalidArgument, "--recall-stride has no effect with --generate");
  }
  options.generated_tokens = flags.generate.generated_tokens;
  options.modes = compressed(*modes, *compressions);
  options.decode_tokens = flags.decode_tokens.value_or(is_generated ? 1024 : 256);
  if (!flags.reference_type.empty()) {
    const auto type = parse_kv_type(flags.reference_type);
    if (!type) {
      return fail(type.error().code(), "--reference-type: " + type.error().message());
    }
    options.reference_type = *type;
  }
  const auto prompt_kv = parse_kv_wire_type(flags.prompt_kv);
  if (!prompt_kv) {
    return fail(prompt_kv.error().code(), "--prompt-kv: " + prompt_kv.error().message());
  }
  options.prompt_kv = *prompt_kv;
  if (is_generated && options.prompt_kv != KvWireType::kNative) {
    return fail(StatusCode::kInvalidArgument,
                "--prompt-kv has no effect with --generate, which has no prompt");
  }
  for (const EvalMode& mode : options.modes) {
    SparseFlags selection = flags.selection;
    selection.token_budget = mode.is_sparse ? mode.token_budget : 0;
    auto sparse = check_sparse_flags(selection);
    if (!sparse) {
      return fail(sparse.error());
    }
    options.sparse = *sparse;
  }
  options.sparse.recall_stride = flags.recall_stride.value_or(is_generated ? 0 : 16);
  const bool has_sparse = std::any_of(options.modes.begin(), options.modes.end(),
                                      [](const EvalMode& mode) { return mode.is_sparse; });
  if (!flags.plot_path.empty() && !has_sparse && !is_generated) {
    return fail(StatusCode::kInvalidArgument,
                "--plot shows loss against budget and needs --kv-mode sparse or --generate");
  }
  if (flags.key_centre == "built-in") {
    options.key_centre = {"built-in text", std::string(key_centre_text())};
  } else if (flags.key_centre != "none") {
    auto text = read_text(flags.key_centre);
    if (!text) {
      return fail(text.error());
    }
    options.key_centre = std::move(*text);
  }
  for (const std::string& path : flags.text_paths) {
    auto text = read_text(path);
    if (!text) {
      return fail(text.error());
    }
    options.texts.push_back(std::move(*text));
  }
  const bool is_planted = options.num_needles > 0 || options.pass_key;
  if (is_planted && flags.filler_path.empty() && options.texts.empty()) {
    return fail(StatusCode::kInvalidArgument,
                "--needles and --passkey hide numbers in a text; name one with --filler or --file");
  }
  if (is_planted && flags.filler_path.empty()) {
    options.filler = options.texts.front();
  } else if (is_planted) {
    auto filler = read_text(flags.filler_path);
    if (!filler) {
      return fail(filler.error());
    }
    options.filler = std::move(*filler);
  }
  if (options.texts.empty() && !is_planted) {
    return fail(StatusCode::kInvalidArgument,
                "there is nothing to read; give --file, --needles or --passkey");
  }
  if (!flags.plot_path.empty() && options.texts.empty() && options.num_needles == 0) {
    return fail(StatusCode::kInvalidArgument,
                "--plot shows the loss on texts; give --file or --needles beside --passkey");
  }
  std::vector<int>& lengths = options.lengths;
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  return options;
}

// A missing folder should be known before an hour of work, not behind it.
Expected<void> check_outputs(const EvalFlags& flags) {
  for (const std::string& path : {flags.json_path, flags.plot_path}) {
    if (!path.empty()) {
      if (auto writable = check_writable(path); !writable) {
        return writable;
      }
    }
  }
  return {};
}

int run(const EvalFlags& flags) {
  const auto options = read_flags(flags);
  if (!options) {
    return report_error(options.error());
  }
  if (const auto writable = check_outputs(flags); !writable) {
    return report_error(writable.error());
  }
  auto line = std::make_unique<BenchProgressLine>();
  const auto report =
      run_eval(*options, [&](std::string_view what, double done) { line->update(what, done); });
  line.reset();
  if (!report) {
    return report_error(report.error());
  }
  std::vector<ReportFile> files;
  if (!flags.json_path.empty()) {
    files.push_back({flags.json_path, to_json(*report).dump(2) + "\n"});
  }
  if (!flags.plot_path.empty()) {
    files.push_back({flags.plot_path, to_plot(*report)});
  }
  if (const auto written = write_report(to_table(*report), files); !written) {
    return report_error(written.error());
  }
  return kExitOk;
}

}  // namespace

void add_eval_command(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<EvalFlags>();
  EvalOptions& options = flags->options;
  options.num_threads =
      std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMaxThreads);

  CLI::App* eval = app.add_subcommand(
      "eval", "Measure what a KV mode costs in quality against dense attention on the same text.");
  eval->add_option("-m,--model", options.model_path, "GGUF file")->required();
  eval->add_option("--file", flags->text_paths, "Texts, UTF-8");
  eval->add_option("--length", options.lengths,
                   "Tokens of a text that are used, from its begin (7904, or the model's context)")
      ->delimiter(',')
      ->check(CLI::Range(2, kMaxTokens));
  eval->add_option("--decode-tokens", flags->decode_tokens,
                   "The last of them are decoded in the KV mode and compared (256; with --generate "
                   "1024)")
      ->check(CLI::Range(1, kMaxTokens));
  eval->add_option("--kv-mode", flags->kv_modes, "dense, sparse (sparse; with --generate dense)")
      ->delimiter(',');
  eval->add_option("--token-budget", flags->token_budgets,
                   "Tokens that a row attends to in each KV head (512,1024,2048)")
      ->delimiter(',')
      ->check(CLI::Range(1, kMaxTokens));
  eval->add_option("--block-index", flags->block_indexes, "r2, r3, minmax, mean (r2)")
      ->delimiter(',');
  eval->add_option("--cache-type-k", flags->kv_types, "KV types: bf16, f32, q8_0 (-ctk; bf16)")
      ->delimiter(',');
  eval->add_option("--reference-type", flags->reference_type,
                   "KV type of the dense reference (the mode's own)");
  eval->add_option(
      "--prompt-kv", flags->prompt_kv,
      "How the prompt's KV comes to the modes, as serve --kv-wire-type has it: native, "
      "r4 (native)");
  eval->add_option("--recent-window", flags->selection.recent_window,
                   "Latest tokens that are always attended to (128)");
  eval->add_option("--sink-tokens", flags->selection.sink_tokens,
                   "First tokens that are always attended to (16)");
  eval->add_option("--dense-layers", flags->selection.dense_layers,
                   "First layers that attend to everything (0)");
  eval->add_option("--select-per", flags->selection.select_per,
                   "head: each KV head chooses its own; layer: one choice for all (head)");
  eval->add_option("--key-centre", flags->key_centre,
                   "What r2 and r3 subtract from keys: the mean key over a built-in text or over a "
                   "file, or none (built-in)");
  eval->add_option("--needles", options.num_needles,
                   "One more text, with so many numbers hidden in it and asked for at its end")
      ->check(CLI::Range(1, max_needles()));
  eval->add_flag("--passkey", options.pass_key,
                 "Texts with one number hidden in it, at five depths, for each length");
  eval->add_option("--filler", flags->filler_path, "Where numbers are hidden (the first --file)");
  eval->add_option("--seed", options.seed, "Of the hidden numbers (1)");
  eval->add_option("--recall-stride", flags->recall_stride,
                   "Measure the attention mass recalled at every so many positions; 0: not (16)")
      ->check(CLI::Range(0, kMaxTokens));
  eval->add_option("-t,--threads", options.num_threads, "Threads (all processors)")
      ->check(CLI::Range(1, kMaxThreads));
  eval->add_option("--ubatch-size", options.step_tokens,
                   "Prompt tokens computed at once (-ub; 512)")
      ->check(CLI::Range(1, kMaxTokens));
  add_eval_generate_flags(*eval, flags->generate);
  eval->add_option("--json", flags->json_path, "Write all figures to this file");
  eval->add_option(
      "--plot", flags->plot_path,
      "Draw loss against budget, or with --generate against KV bytes, into this SVG file");
  eval->callback([flags, &exit_code] { exit_code = run(*flags); });
}

}  // namespace karez
